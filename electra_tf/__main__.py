"""The command ``electra-tf``, also ``python -m electra_tf``."""

import pkgutil
import sys
from collections.abc import Sequence

from electra_tf import __version__, cli
from electra_tf.cli import Command

_TEXTS = "TEXT ...: the texts; default: standard input, one per line."
# Modules are below electra_tf.config and electra_tf.
COMMANDS = {
    name: Command(f"electra_tf.config.{config}", f"electra_tf.{function}", *texts)
    for name, config, function, *texts in (
        ("pretrain", "pretraining:PretrainConfig", "runs.pretraining:run"),
        ("finetune", "finetuning:FinetuneConfig", "runs.finetuning:main"),
        ("predict", "commands:PredictConfig", "serving.predictor:main", _TEXTS),
        ("evaluate", "commands:EvaluateConfig", "api.loading:evaluate"),
        ("inspect", "commands:InspectConfig", "analysis.inspector:main", _TEXTS),
        ("analyze", "commands:AnalyzeConfig", "analysis.analyze:main"),
        ("score", "commands:ScoreConfig", "analysis.score:main"),
        ("compare", "commands:CompareConfig", "comparison.compare:run"),
        ("convert", "commands:ConvertConfig", "interop.convert:main"),
        ("records", "records:RecordsConfig", "data.building:main"),
        ("doctor", "commands:DoctorConfig", "doctor:main"),
    )
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command named by the first argument and returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    name = arguments[0] if arguments else "--help"
    if arguments == ["pretrain"]:
        # Would train a million steps on the documentation of packages.
        cli.note("pretrain needs flags such as --flagfile=configs/tiny.cfg; see --help")
        return cli.ERROR
    if name in COMMANDS:
        return cli.run(COMMANDS[name], arguments[1:])
    with cli.clear_errors():
        if name == "--version":
            cli.say(f"electra_tf {__version__}")
        elif name in ("-h", "--help", "help"):
            cli.say(listing())
        else:
            hint = cli.did_you_mean(name, COMMANDS)
            raise cli.UserError(f"unknown command {name!r}.{hint} See --help.")
    return cli.OK


def listing() -> str:
    """Returns the text of ``electra-tf --help``."""
    width = max(map(len, COMMANDS))
    lines = [
        f"  {name:{width}}  {cli.summary(pkgutil.resolve_name(command.config))}"
        for name, command in COMMANDS.items()
    ]
    usage = "electra-tf COMMAND [--FLAG ...], or python -m electra_tf COMMAND"
    after = "`electra-tf COMMAND --help` explains a command and all its flags."
    return "\n".join([usage, "", *lines, "", after])


if __name__ == "__main__":
    sys.exit(main())
