"""Made the golden files beside it: what the library did before it was reorganised.

It ran once, at commit 1e4ff67, with TensorFlow and Keras of the versions in meta.json:

    python -m tests.golden.make

It must not be rerun to make a failing test of tests/test_golden.py pass: such a test
says that files which users have are not read, or not continued, as they were. Nor can
it be, since it imports modules from where they were at that commit. A file that is
missing here needs a golden file of its own, made by the code of that time.
"""

import csv
import functools
import json
import os
import random
import runpy
import shutil
import signal
import string
import sys
import tempfile
import unicodedata
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras  # noqa: I001  modules of that commit are unknown now
import numpy as np
import tensorflow as tf

import electra_tf as et
from electra_tf import build, build_models, pretrain
from electra_tf.data.vocabulary import SPECIAL_TOKENS, Vocabulary
from electra_tf.pretraining import UnigramGenerator
from electra_tf.tasks.base import Example
from electra_tf.tasks.squad_files import Question
from electra_tf.tasks.tagging_files import Sentence
from tests.flag_parsing import parse
from tests.golden import archive, commands, machine, recipes

LENGTH = 24


def main():
    """Makes all files; takes some minutes."""
    folder = Path(tempfile.mkdtemp())
    os.chdir(folder)
    text()
    runs()
    records()
    finetuning()
    answers_of_commands()
    models()
    systems()
    options()
    meta()
    shutil.rmtree(folder)


def text():
    """A corpus with accents, capitals, digits and unknown signs; its vocabulary."""
    rng = random.Random(0)
    subjects = ["The cat", "A dog", "My bird", "One horse", "The café", "Zoë", "2 men"]
    verbs = ["sees", "likes", "eats", "finds", "followed", "unfollows", "paints"]
    places = ["in the garden", "at night", "near the river", "on hill 7", "☂"]
    lines = []
    for _ in range(60):
        for _ in range(rng.randint(3, 8)):
            parts = (rng.choice(subjects), rng.choice(verbs), rng.choice(subjects))
            lines.append(" ".join((*parts, rng.choice(places), ".")))
        lines.append("")
    Path("text.txt").write_text("\n".join(lines), "utf-8")
    plain = unicodedata.normalize("NFD", " ".join(lines).lower())
    words = sorted({w for w in plain.split() if w.isascii() and len(w) > 2})
    pairs = sorted({f"##{w[i : i + 2]}" for w in words for i in range(1, len(w) - 1)})
    signs = [*string.ascii_lowercase, *string.digits, *".,!?"]
    tokens = [*SPECIAL_TOKENS, *signs, *(f"##{s}" for s in signs[:36])]
    # Not all words: some are read in pieces.
    tokens += [*pairs[::2], "un", *words[::2]]
    Vocabulary(tuple(tokens)).save("vocab.txt")


def runs():
    """A finished run, and runs that SIGTERM stopped, as the script leaves them."""
    _script("run_pretraining", *recipes.pretraining("finished"))
    _script("run_pretraining", *recipes.pretraining("whole", *recipes.TWO_STAGE))
    for name, (step, flags) in recipes.STOPPED.items():
        command = [sys.executable, "-m", "tests.golden.make", str(step)]
        code, said = commands.start([*command, *recipes.pretraining(name, *flags)], ".")
        assert code == 75, said
        assert [p.name for p in Path(name).glob("checkpoints/*.index")] == [
            f"ckpt-{step}.index"
        ]
    for name in ("finished", "whole", *recipes.STOPPED):
        # The names of event files tell the machine's.
        shutil.rmtree(Path(name, "tensorboard"))
        Path(name, "curves.png").unlink(missing_ok=True)
    for path in Path("whole").glob("*.keras"):
        path.unlink()


def stopped(step, *arguments):
    """The script itself, stopped by SIGTERM in the given step."""

    class Stop(keras.callbacks.Callback):
        def __init__(self, first_step):
            super().__init__()
            self.first_step = first_step

        def on_train_batch_end(self, batch, logs=None):
            if self.first_step + batch + 1 == step:
                os.kill(os.getpid(), signal.SIGTERM)

    pretrain.run = functools.partial(
        pretrain.run, callbacks_from=lambda first: [Stop(first)]
    )
    sys.argv = ["run_pretraining.py", *arguments]
    runpy.run_path(str(commands.ROOT / "run_pretraining.py"), run_name="__main__")


def _script(name, *arguments):
    code, said = commands.start(commands.line(name, *arguments), ".")
    assert code == 0, said


def records():
    """First batches of the records of the runs."""
    for name, options in recipes.BATCHES.items():
        found = recipes.batches(et, "data", options)
        np.savez_compressed(f"batches_{name}.npz", **found)


def finetuning():
    """A finished fine-tuning run, its data, and its answers."""
    rng = random.Random(1)
    for name, count in (("train", 48), ("eval", 12)):
        with open(f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            for number in range(count):
                animal = (("cat", "bird"), ("dog", "horse"))[number % 2]
                verb = rng.choice(["sees", "likes", "eats"])
                line = f"The {rng.choice(animal)} {verb} {rng.choice(animal)} ."
                writer.writerow([line, ("small", "large")[number % 2]])
    _script("run_finetuning", *recipes.FINETUNING)
    for path in Path("task").glob("*.png"):
        path.unlink()


def answers_of_commands():
    """What predict, inspect and doctor say of the finished runs."""
    found = {}
    # The doctor ends with code 1 where it finds a problem, as in so short a run.
    for name, (command, arguments) in recipes.QUESTIONS.items():
        code, out, err = commands.call(command, *arguments)
        assert out, err
        found[name] = {"code": code, "rows": list(map(json.loads, out.splitlines()))}
    Path("answers.json").write_text(json.dumps(found, indent=1) + "\n")
    archive.pack(".", "runs")


def models():
    """Saved models of every kind, and what they answer."""
    folder = Path("models")
    folder.joinpath("inputs").mkdir(parents=True)
    vocabulary = Vocabulary.load("vocab.txt")
    batch = next(et.data.pretraining_dataset("data", batch_size=4).as_numpy_iterator())
    np.savez_compressed(folder / "inputs" / "pretraining.npz", **batch)
    for name, flags in recipes.SYSTEMS.items():
        config = parse(*recipes.pretraining(name, *recipes.SMALLER, *flags))
        model = build_models.model(
            config, len(vocabulary), build.special_ids(vocabulary)
        )
        if isinstance(getattr(model, "generator", None), UnigramGenerator):
            model.generator.set_counts(np.arange(len(vocabulary)))
        randomize(model)
        folder.joinpath(name).mkdir()
        for part, saved in model.artifacts().items():
            saved.save(folder / name / f"{part}.keras")
        if name == "electra":
            # With its optimizer in the midst of training; Keras saves that, too.
            trained(model, batch)
        model.save(folder / name / "whole.keras")
    task_models(folder, vocabulary)
    script = str(archive.HERE / "answers.py")
    command = [sys.executable, script, str(folder), str(folder / "answers")]
    code, said = commands.start(command, ".")
    assert code == 0, said
    archive.pack(folder, "models")


def trained(model, batch):
    """Two steps with everything that an optimizer can be told."""
    schedule = et.training.WarmupPolynomialDecay(1e-3, total_steps=9, warmup_steps=2)
    optimizer = et.training.AdamW(
        schedule,
        weight_decay=0.02,
        clipping="per_replica",
        learning_rate_multipliers=[(model.generator.head.trainable_variables, 0.5)],
        clip_groups={"head": (model.objective.trainable_variables, 0.5)},
    )
    model.compile(optimizer=optimizer, run_eagerly=True)
    data = tf.data.Dataset.from_tensors(batch).repeat(2)
    model.fit(data, verbose=0, shuffle=False)


def randomize(model):
    """Other values everywhere, so that no two variables can be mistaken."""
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        value = np.asarray(variable) + rng.normal(scale=0.1, size=variable.shape)
        variable.assign(value.astype(np.float32))


def task_models(folder, vocabulary):
    """One fine-tuned model of each task, with its loss."""
    tokenizer = et.data.WordPiece(vocabulary)
    small = [
        Example("0", ("the cat sees my bird",), "small"),
        Example("1", ("a dog",), "large"),
        Example("2", ("one horse likes the river .",), "large"),
    ]
    numbers = [Example(e.id, e.texts, float(n)) for n, e in enumerate(small)]
    several = [Example(e.id, e.texts, (e.label,)) for e in small]
    sentences = [
        Sentence("0", ("the", "cat", "sees"), ("B-A", "I-A", "O"), (), ()),
        Sentence("1", ("zoe", "paints"), ("B-B", "O"), (), ()),
    ]
    questions = [
        Question("0", "who eats", "the cat eats .", (("the cat", 0),)),
        Question("1", "who likes", "a dog sees one horse .", ()),
    ]
    tasks = {
        "classification": (et.tasks.Classification, {}, small),
        "multilabel": (et.tasks.MultiLabel, {}, several),
        "question_answering": (
            et.tasks.QuestionAnswering,
            {
                "beam_size": 3,
                "answerability": True,
                "unanswerable": True,
                "max_query_length": 8,
                "doc_stride": 4,
            },
            questions,
        ),
        "regression": (et.tasks.Regression, {}, numbers),
        "tagging": (et.tasks.Tagging, {}, sentences),
    }
    folder.joinpath("tasks").mkdir()
    for name, (kind, options, examples) in tasks.items():
        task = kind(name=name, source=None, **options).prepare(examples)
        encoder = keras.saving.load_model(folder / "electra" / "encoder.keras")
        model = task.build_model(encoder)
        randomize(model)
        model.compile(optimizer=et.training.AdamW(1e-3), loss=task.loss("mean"))
        model.save(folder / "tasks" / f"{name}.keras")
        rows = task.featurize(examples, tokenizer, LENGTH)
        inputs, _, _ = et.tasks.make_batch(rows, np.arange(len(rows)), LENGTH)
        np.savez_compressed(folder / "inputs" / f"{name}.npz", **inputs)


def systems():
    """Short runs of all systems: settings, checkpoint, size of the final weights."""
    found = {}
    for name, flags in recipes.SYSTEMS.items():
        arguments = recipes.pretraining(name, *recipes.SHORT, *flags)
        shutil.rmtree(name, ignore_errors=True)
        code, _, err = commands.call("run_pretraining", *arguments)
        assert code == 0, err
        found[name] = recipes.outcome(tf, name)
    Path("systems").mkdir()
    Path("systems", "systems.json").write_text(json.dumps(found, indent=1) + "\n")
    archive.pack("systems", "systems")
    names = [row[0] for row in recipes.checkpoint(tf, "finished")]
    (archive.HERE / "checkpoint.txt").write_text("\n".join(names) + "\n")


def options():
    """Every flag of every command, with its default."""
    found = {
        name: commands.options(name) for name in (*commands.SCRIPTS, *commands.MODULES)
    }
    text = json.dumps(found, indent=1, sort_keys=True)
    (archive.HERE / "flags.json").write_text(text + "\n")


def meta():
    """What the numbers depend on."""
    found = {"commit": "1e4ff67", **machine.described()}
    (archive.HERE / "meta.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        stopped(int(sys.argv[1]), *sys.argv[2:])
    main()
