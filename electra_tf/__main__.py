"""The command ``electra-tf``, also ``python -m electra_tf``."""

import sys
from collections.abc import Sequence

from electra_tf import __version__, cli
from electra_tf.cli import Command

_TEXTS = "TEXT ...: the texts; default: standard input, one per line."
_CONFIG = "electra_tf.config"

COMMANDS = {
    "pretrain": Command(
        "Pretrains ELECTRA, or BERT's masked LM, from raw text",
        f"{_CONFIG}.pretraining:PretrainConfig",
        "electra_tf.runs.pretraining:run",
    ),
    "finetune": Command(
        "Fine-tunes an encoder for a task, scores it, and exports it for serving",
        f"{_CONFIG}.finetuning:FinetuneConfig",
        "electra_tf.runs.finetuning:main",
    ),
    "predict": Command(
        "Predicts texts or tables with a fine-tuned model",
        f"{_CONFIG}.commands:PredictConfig",
        "electra_tf.serving.predictor:main",
        _TEXTS,
    ),
    "evaluate": Command(
        "Scores a fine-tuned model on labeled data",
        f"{_CONFIG}.commands:EvaluateConfig",
        "electra_tf.api.loading:evaluate",
    ),
    "inspect": Command(
        "Shows a pretrained model's predictions on a text",
        f"{_CONFIG}.commands:InspectConfig",
        "electra_tf.analysis.inspector:main",
        _TEXTS,
    ),
    "analyze": Command(
        "Measures a discriminator: calibration, real errors, bias and layers",
        f"{_CONFIG}.commands:AnalyzeConfig",
        "electra_tf.analysis.analyze:main",
    ),
    "score": Command(
        "Scores sentences of minimal pairs or of n-best lists with a pretrained model",
        f"{_CONFIG}.commands:ScoreConfig",
        "electra_tf.analysis.score:main",
    ),
    "compare": Command(
        "Runs systems at equal FLOPs, probes their encoders, and tests differences",
        f"{_CONFIG}.commands:CompareConfig",
        "electra_tf.comparison.compare:run",
    ),
    "convert": Command(
        "Converts weights from and to other libraries",
        f"{_CONFIG}.commands:ConvertConfig",
        "electra_tf.interop.convert:main",
    ),
    "records": Command(
        "Builds TFRecords for pretraining from raw text",
        f"{_CONFIG}.records:RecordsConfig",
        "electra_tf.data.building:main",
    ),
    "doctor": Command(
        "Checks a checkpoint for known problems",
        f"{_CONFIG}.commands:DoctorConfig",
        "electra_tf.doctor:main",
    ),
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
    lines = [f"  {name:{width}}  {row.summary}" for name, row in COMMANDS.items()]
    usage = "electra-tf COMMAND [--FLAG ...], or python -m electra_tf COMMAND"
    after = "`electra-tf COMMAND --help` explains a command and all its flags."
    return "\n".join([usage, "", *lines, "", after])


if __name__ == "__main__":
    sys.exit(main())
