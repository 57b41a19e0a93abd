"""How long the README's main job takes, and what its model has learned.

    python benchmarks/main_job.py

One run of configs/tiny.cfg as on a machine that has never seen it: text from the
installed packages, a vocabulary, records, training, evaluation, saved models, with an
empty cache for what XLA compiles. The parts end where the command says so. Other flags
go on to the command: ``--flags="--num_train_steps=2000"``.
"""

import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness

from electra_tf.folders.pretraining import PretrainingFolder

ROOT = Path(__file__).parent.parent
# Part -> what the line has that ends it; the last one ends with the process.
ENDS = {
    "vocabulary": ": 4096 tokens in ",
    "records": "wrote ",
    "start-up, first step": " auc ",
    "training and its evaluations": " 100.0%  eta 00:00 ",
    "evaluation, saving": None,
}
SCORES = ("replaceable_auc", "discriminator_auc", "generator_loss")


def run(folder, flags):
    """Seconds of each part of one run."""
    command = [sys.executable, str(ROOT / "run_pretraining.py")]
    command += [f"--flagfile={ROOT / 'configs' / 'tiny.cfg'}", f"--model_dir={folder}"]
    environment = {**os.environ, "ELECTRA_TF_XLA_CACHE": f"{folder}-cache"}
    environment.pop("TF_XLA_FLAGS", None)
    began, took, left = time.time(), {}, list(ENDS.items())
    with subprocess.Popen(
        [*command, *flags],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        for line in process.stdout:
            print(line, end="", file=sys.stderr)
            # The progress of the records ends with a line such as that of training.
            name, end = left[0]
            if end and end in line:
                took[name] = time.time() - began - sum(took.values())
                del left[0]
    if process.returncode:
        sys.exit(f"error: the run ended with exit code {process.returncode}")
    took[left[0][0]] = time.time() - began - sum(took.values())
    return took


def main():
    parser = harness.arguments(__doc__.splitlines()[0], rounds=1)
    parser.add_argument("--flags", default="", help="more flags of the command")
    arguments = parser.parse_args()
    parts, scores = [], {}
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "run"
            parts.append(run(folder, shlex.split(arguments.flags)))
            scores = PretrainingFolder(folder).held_out()
    # Of the fastest: noise only adds time.
    fastest = min(parts, key=lambda took: sum(took.values()))
    job = "the README's main job"
    rows = [
        {"what": f"{job}: {name}", "unit": "seconds", "ours": seconds}
        for name, seconds in {"all": sum(fastest.values()), **fastest}.items()
    ]
    rows += [
        {"what": f"{job}: held-out {name}", "unit": "", "ours": scores[f"eval_{name}"]}
        for name in SCORES
    ]
    harness.report("main_job", rows, arguments.output, parts=parts)


if __name__ == "__main__":
    main()
