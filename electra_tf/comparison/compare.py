"""The command `compare`: runs the missing jobs and writes tables and a figure."""

from electra_tf import cli, files
from electra_tf.cli import Log
from electra_tf.comparison import picture, plan, report, runner
from electra_tf.comparison.store import Store
from electra_tf.config.comparison import CompareConfig

TABLE = "table.md"


def run(config: CompareConfig, log: Log = cli.say) -> int:
    """Runs the missing jobs, writes tables and a figure; returns the exit code.

    Raises UserError if the settings conflict with each other or with the output folder.
    """
    ready = plan.make(config, log)
    if config.dry_run:
        log(f"{report.cost_table(ready, {})}\n\ndry run: nothing was trained.")
        return cli.OK
    store = Store(config.output_dir)
    store.check(ready.settings(), overwrite=config.overwrite)

    def write() -> str:
        text = report.markdown(ready, store)
        files.write_text(store.folder / TABLE, text)
        if drawn := picture.figure(report.Scores(ready, store)):
            with files.replacing(store.folder / picture.PICTURE) as part:
                drawn.savefig(part, dpi=110)
        return text

    jobs = plan.jobs(ready, store)
    if jobs:
        log(f"{len(jobs)} runs are left to do or to probe; logs: log.txt in each")
    signal = runner.run(jobs, store, config.workers, log, write)
    log(write())
    if signal:
        log(f"{signal}: stopped; the same command resumes from here.")
        return cli.STOPPED
    log(str(store.folder / TABLE))
    failed = sum(len(job["parts"]) for job in plan.jobs(ready, store))
    if failed:
        log(f"{failed} parts failed (see the table); the same command retries them.")
    return cli.ERROR if failed else cli.OK
