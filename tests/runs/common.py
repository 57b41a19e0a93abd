"""Tables and whole fine-tuning runs for several tests."""

from electra_tf.config import fields
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.runs import finetuning
from tests.tasks.common import sentiment


def config(**values):
    return fields.from_flat(values, FinetuneConfig)


def table(path, examples):
    rows = "".join(f"{e.texts[0]},{e.label}\n" for e in examples)
    path.write_text("text,label\n" + rows)
    return str(path)


def moods(folder, encoder, *, train=32, dev=12, **values):
    """Returns the flags of a run on separable examples, without a SavedModel."""
    return {
        "task": "classification",
        "encoder": str(encoder),
        "train": table(folder / "train.csv", sentiment(train)),
        "eval": table(folder / "eval.csv", sentiment(dev, offset=train)),
        "max_seq_length": 16,
        "train_batch_size": 8,
        "export_saved_model": False,
        **values,
    }


def run(folder, **values):
    """Fine-tunes into a folder; returns the report and the log lines."""
    said = []
    values["output_dir"] = str(folder)
    return finetuning.run(config(**values), said.append), said
