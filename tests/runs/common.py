"""Tables and whole fine-tuning runs for several tests."""

from electra_tf.config import fields
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.runs import finetuning


def config(**values):
    return fields.from_flat(values, FinetuneConfig)


def table(path, examples):
    rows = "".join(f"{e.texts[0]},{e.label}\n" for e in examples)
    path.write_text("text,label\n" + rows)
    return str(path)


def run(folder, **values):
    """Fine-tunes into a folder; returns the report and the log lines."""
    said = []
    report = finetuning.run(config(**values, output_dir=str(folder)), said.append)
    return report, said
