"""The command `compare`: runs the missing jobs and writes tables and figures."""

from electra_tf import cli, files
from electra_tf.cli import Log
from electra_tf.comparison import picture, plan, report
from electra_tf.comparison.runner import Runner
from electra_tf.comparison.store import Store
from electra_tf.config.comparison import CompareConfig

TABLE = "table.md"


def run(config: CompareConfig, log: Log = cli.say) -> int:
    """Runs the missing jobs and writes tables and figures; returns the exit code.

    Raises UserError if the settings conflict with each other or with the output folder.
    """
    ready = plan.make(config, log)
    if config.dry_run:
        log(report.planned(ready))
        return cli.OK
    store = Store(config.output_dir)
    store.check(ready.settings(), overwrite=config.overwrite)
    jobs = plan.jobs(ready, store)
    if jobs:
        log(f"{len(jobs)} runs are left to do or to probe; logs: log.txt in each")
    signal = Runner(store, config.workers, log, lambda: write(ready, store)).run(jobs)
    log(write(ready, store))
    if signal:
        log(f"{signal}: stopped; the same command resumes from here.")
        return cli.STOPPED
    places = [store.folder / name for name in (TABLE, picture.PICTURE)]
    log(", ".join(str(place) for place in places if place.exists()))
    failed = sum(len(plan.parts(job)) for job in plan.jobs(ready, store))
    if failed:
        log(f"{failed} parts failed (see the table); the same command retries them.")
    return cli.ERROR if failed else cli.OK


def write(ready: plan.Plan, store: Store) -> str:
    """Writes the tables and figures of the results so far; returns the tables."""
    text = report.markdown(ready, store)
    files.write_text(store.folder / TABLE, text)
    picture.draw(report.Scores(ready, store), store.folder / picture.PICTURE)
    return text
