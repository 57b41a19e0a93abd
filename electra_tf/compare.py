r"""Runs a ladder of systems at equal FLOPs, probes their encoders, and tests.

Examples:
  # What would it take? Steps, FLOPs, time, disk; nothing is trained.
  python -m electra_tf.compare --flagfile=configs/compare/table5.cfg --dry_run \
      --data_root=data --pretrain=--corpus=data/text.txt

  # The paper's Table 5 on your text, two runs at a time.
  python -m electra_tf.compare --flagfile=configs/compare/table5.cfg --workers=2 \
      --data_root=data --pretrain=--corpus=data/text.txt

  # A comparison of your own.
  python -m electra_tf.compare --output_dir=runs/mine --budget=electra:2000 \
      --pretrain=--flagfile=configs/tiny.cfg --system=electra: \
      --system='mlm: --objective=mlm --mask_rule=bert' \
      --probe='tiny: --flagfile=configs/tasks/tiny.cfg'

The folder --output_dir gets table.md, scores.png, results.jsonl (one line per finished
run and probe), ladder.json (settings), data/ and runs/. The same command goes on after
a kill and skips what is done. Exit codes: 0 done, 1 error or a run that failed, 75
stopped by SIGTERM or SIGINT.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import sys
from pathlib import Path

from absl import app, flags, logging

from electra_tf import flags as flags_lib
from electra_tf import pretrain
from electra_tf.comparison import dry_run, picture, plan, report
from electra_tf.comparison.config import CompareConfig, LadderConfig
from electra_tf.comparison.runner import Log, Runner
from electra_tf.comparison.store import Store

TABLE = "table.md"


def run(config: LadderConfig, log: Log) -> int:
    """Runs what is left of a comparison and writes its tables.

    Args:
        config: what is compared.
        log: receives messages.

    Returns:
        The exit code.

    Raises:
        ValueError: settings do not fit each other or what is in the folder.
        OSError: something cannot be read or written.
    """
    ready = plan.make(config, log)
    if config.dry_run:
        dry_run.run(ready, log)
        return 0
    store = Store(config.output_dir)
    store.check(ready.settings(), overwrite=config.overwrite)
    jobs = plan.jobs(ready, store)
    if jobs:
        log(f"{len(jobs)} runs are left to do or to probe; logs: log.txt in each")
    runner = Runner(store, config.workers, log, lambda: write(ready, store))
    signal = runner.run(jobs)
    log(write(ready, store))
    if signal:
        log(f"{signal}: stopped; the same command goes on from here.")
        return pretrain.EXIT_STOPPED
    left = sum(
        len(job["probes"]) + bool(job["pretrain"]) for job in plan.jobs(ready, store)
    )
    log(f"{store.folder / TABLE}, {store.folder / picture.PICTURE}")
    if left:
        log(f"{left} parts failed (see the table); the same command tries them again.")
    return 1 if left else 0


def write(ready: plan.Plan, store: Store) -> str:
    """Writes tables and picture of what is done so far; returns the tables."""
    text = report.markdown(ready, store)
    path = store.folder / TABLE
    part = Path(f"{path}.part")
    part.write_text(text, "utf-8")
    os.replace(part, path)
    picture.draw(report.Scores(ready, store), store.folder / picture.PICTURE)
    return text


def main(arguments):
    """Flags to config to run."""
    if len(arguments) > 1:
        sys.exit(f"error: unexpected arguments {arguments[1:]}; see --help")
    logging.set_verbosity(logging.WARNING)
    with pretrain.clear_errors():
        return run(flags_lib.read(CompareConfig, flags.FLAGS).ladder, _say)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    flags_lib.define(CompareConfig)
    app.run(main)
