import pytest

from tests.golden.commands import python

# Keras 3.15 causes this NumPy 2 warning whenever it saves a model.
STRICT = ("-W", "error", "-W", "ignore:__array__:DeprecationWarning")
SIZES = """--vocab_size=100 --train_batch_size=4 --max_seq_length=32 --num_layers=1 \
--hidden_size=16 --embedding_size=8 --num_heads=2 --num_train_steps=4 \
--save_checkpoint_steps=2 --log_steps=1 --callback=keras.callbacks:TerminateOnNaN"""
# The model must beat the baseline; otherwise the command exits with an error.
LEARNS = "--epochs=5 --train_batch_size=4 --learning_rate=1e-2 --layerwise_decay=1"
TABLE = "--task=classification --train=t.csv --encoder=run --output_dir=task"
PROGRAM = f"""
import runpy, sys
for arguments in (
    "pretrain --corpus=text.txt --model_dir=run {SIZES}".split(),
    "finetune {TABLE} {LEARNS} --max_seq_length=16".split(),
    ["predict", "--model=task", "a quick dog"],
    ["inspect", "--model=run", "a quick dog"],
):
    sys.argv = ["electra-tf", *arguments]
    try:
        runpy.run_module("electra_tf", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        assert not ended.code, ended.code
import electra_tf as et
model = et.load("task")
assert model.predict(["a dog"])[0]["label"] in ("good", "bad")
assert model.encode(["a dog"]).shape == (1, 16)
mine = et.TextClassifier.from_preset("run", ["a", "b"])
mine.fit(["x", "y"], ["a", "b"], verbose=0)
mine.save("mine.keras")
et.load("mine.keras").export("served")
"""


@pytest.mark.slow
def test_commands_and_user_code_raise_no_warning(tmp_path):
    text = "the quick brown fox {} jumps over a lazy dog near the river bank\n"
    blank = ("\n" if i % 5 == 0 else "" for i in range(400))
    lines = (text.format(i) + end for i, end in enumerate(blank))
    (tmp_path / "text.txt").write_text("".join(lines))
    rows = (f"the quick fox {i},good\na lazy dog {i},bad\n" for i in range(40))
    (tmp_path / "t.csv").write_text("text,label\n" + "".join(rows))
    done = python(*STRICT, "-c", PROGRAM, folder=tmp_path)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    # Python prints a warning that it cannot raise, such as one in a destructor.
    assert "Warning" not in done.stderr, done.stderr[-2000:]
