"""Time to the first step of a command, and the cost of a short fine-tuning run.

    python benchmarks/startup.py

Every figure is of a fresh process. Pretraining: ``configs/small.cfg`` on records of
random words, 32 x 128 in bfloat16, from the start of the process to the end of its
first and second step. Fine-tuning: 640 rows of text, 32 per step, in CPU seconds of the
whole command. A run with three times as many steps gives the cost of a step; the rest
is the fixed cost.
"""

import dataclasses
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness
import numpy as np

LENGTH, ROWS, TRAIN_ROWS = 128, 32, 640
WORDS = ["the", "of", "and", "to", "in", "is", "good", "bad", "not", "very"]


def write_texts(folder):
    """Writes a vocabulary of ELECTRA-Small's size, a corpus, and labeled rows."""
    rng = random.Random(0)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = "abcdefghijklmnopqrst"
    words = map("".join, itertools.product(letters, letters, letters, "aeiou"))
    words = [*WORDS, *itertools.islice(words, 30522 - len(special) - len(WORDS))]
    (folder / "vocab.txt").write_text("\n".join([*special, *words]) + "\n")

    def line(count):
        return " ".join(rng.choices(words, k=count))

    documents = ["\n".join(line(60) for _ in range(20)) for _ in range(50)]
    (folder / "corpus.txt").write_text("\n\n".join(documents))
    lines = ["label,text"]
    lines += [
        f"{rng.choice('ab')},{line(rng.randint(5, 100))}" for _ in range(TRAIN_ROWS)
    ]
    (folder / "train.csv").write_text("\n".join(lines))
    (folder / "eval.csv").write_text("\n".join(lines[:161]))


def run(module, *flags):
    """Runs a command; returns its CPU seconds and the ends of its phases."""
    before, began = os.times(), time.time()
    command = [sys.executable, __file__, "--inside", module, str(began), *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    after = os.times()
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    used = sum(after[2:4]) - sum(before[2:4])
    return used, json.loads(done.stdout.splitlines()[-1])


def inside(module, began, *flags):
    """Runs a command in this process and prints the ends of its phases."""
    from electra_tf.config import startup

    with startup.lightly():
        import keras

        from electra_tf import cli
        from electra_tf.config.finetuning import FinetuneConfig
        from electra_tf.config.pretraining import PretrainConfig

        runs = __import__(f"electra_tf.runs.{module}", fromlist=["run"])
    ends = {"imports": time.time() - float(began)}
    if module == "pretraining":
        config, prepare = cli.parse(PretrainConfig, flags), runs.prepare
        step = runs.PretrainingModel.train_step

        def prepared(*arguments):
            ready = prepare(*arguments)
            ends["build"] = time.time() - float(began)
            return dataclasses.replace(ready, callbacks=[Clock])

        def traced(*arguments):
            logs = step(*arguments)
            ends["trace"] = time.time() - float(began)
            return logs

        class Clock(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                ends[f"step {batch + 1}"] = time.time() - float(began)

        runs.prepare, runs.PretrainingModel.train_step = prepared, traced
        runs.finish = lambda ready: None
        runs.run(config, cli.say)
    else:
        runs.run(cli.parse(FinetuneConfig, flags), cli.say)
    print(json.dumps(ends))


def shared(folder, name):
    """Returns the flags of pretraining runs."""
    return (
        "--flagfile=configs/small.cfg",
        f"--records={folder}/records/train-*.tfrecord",
        f"--vocab_file={folder}/vocab.txt",
        f"--model_dir={folder}/{name}",
        "--warmup_steps=1",
        "--eval_steps=0",
    )


def prepare(folder):
    """Builds records, and an encoder trained for one step."""
    records = (
        "records",
        f"--corpus={folder}/corpus.txt",
        f"--vocab_file={folder}/vocab.txt",
        f"--output_dir={folder}/records",
        f"--max_seq_length={LENGTH}",
    )
    encoder = ("--num_train_steps=1", "--train_batch_size=2")
    for words in (records, ("pretrain", *shared(folder, "encoder"), *encoder)):
        command = [sys.executable, "-m", "electra_tf", *words]
        subprocess.run(command, cwd=harness.ROOT, check=True, capture_output=True)


def pretraining(folder, rounds):
    """Returns the phases by round, in seconds since the process start."""
    flags = (
        *shared(folder, "run"),
        f"--eval_records={folder}/records/eval-*.tfrecord",
        f"--train_batch_size={ROWS}",
        "--num_train_steps=2",
        "--mixed_precision=bfloat16",
        "--overwrite",
    )
    return [run("pretraining", *flags)[1] for _ in range(rounds)]


def finetuning(folder, rounds):
    """Returns the total and the cost of a step by round, in CPU seconds."""
    flags = (
        "--task=classification",
        f"--train={folder}/train.csv",
        f"--eval={folder}/eval.csv",
        f"--encoder={folder}/encoder",
        f"--output_dir={folder}/task",
        f"--max_seq_length={LENGTH}",
        "--mixed_precision=bfloat16",
        "--overwrite",
    )
    steps = TRAIN_ROWS // ROWS
    totals = []
    for _ in range(rounds):
        one, three = (
            run("finetuning", *flags, f"--epochs={epochs}")[0] for epochs in (1, 3)
        )
        per_step = (three - one) / (2 * steps)
        fixed = one - steps * per_step
        totals.append({"total": one, "per_step": per_step, "fixed": fixed})
    return totals


def median(unit, what, rounds, name):
    """Returns a row of the report."""
    ours = float(np.median([figures[name] for figures in rounds]))
    return {"what": what, "unit": unit, "ours": ours}


def parts(ends):
    """Returns the median seconds of each phase; ``ends`` has phase ends by run."""
    seconds = [np.diff([0.0, *end.values()]) for end in ends]
    return dict(zip(ends[0], np.median(seconds, axis=0).tolist(), strict=True))


def main():
    parser = harness.arguments(__doc__, rounds=3)
    parser.add_argument("--only", choices=("pretraining", "finetuning"))
    arguments = parser.parse_args()
    rows, details = [], {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_texts(folder)
        prepare(folder)
        if arguments.only != "finetuning":
            ends = pretraining(folder, arguments.rounds)
            what = "process start to the first step of small"
            rows.append(median("seconds", what, ends, "step 1"))
            details["phases"] = parts(ends)
        if arguments.only != "pretraining":
            totals = details["finetuning"] = finetuning(folder, arguments.rounds)
            what = "fine-tuning small on 640 rows: fixed cost"
            rows.append(median("CPU seconds", what, totals, "fixed"))
    if phases := details.get("phases"):
        print(", ".join(f"{name} {seconds:.1f}" for name, seconds in phases.items()))
    harness.report("startup", rows, arguments.output, **details)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        inside(*sys.argv[2:])
    else:
        main()
