import dataclasses
import json
from typing import Any

import keras
import numpy as np
import pytest

from electra_tf.folders.finetuning import FinetuningFolder
from electra_tf.runs import finetuning
from electra_tf.tasks import ClassificationHead, Task, saved
from electra_tf.tasks.batching import Outputs
from electra_tf.tasks.encoding import encode_texts
from tests.runs.common import config
from tests.tasks import common


@dataclasses.dataclass(frozen=True, kw_only=True)
class Praise(Task):
    """Binary sentiment; defines the abstract methods only."""

    name: str = "praise"
    source: Any = None
    limit: float = 0.5

    kind = "praise"
    test_splits = ()
    main_metric = "hits"
    tunes = True

    def featurize(self, examples, tokenizer, max_seq_length, *, training=False):
        texts = [example.texts for example in examples]
        rows = encode_texts(tokenizer, texts, max_seq_length)
        labels = np.array([[example.label == "pos"] for example in examples], "float32")
        return dataclasses.replace(rows, targets={"positive": labels})

    def head(self, encoder):
        return ClassificationHead(encoder.hidden_size, 1, pooling="mean")

    def loss(self, reduction="sum"):
        return keras.losses.BinaryCrossentropy(from_logits=True, reduction=reduction)

    def decode(self, outputs, rows, examples):
        return [1 / (1 + np.exp(-logit[0])) > self.limit for logit in outputs]

    def score(self, answers, examples):
        labels = [example.label == "pos" for example in examples]
        return {"hits": 100 * float(np.mean(np.equal(answers, labels)))}

    def to_json(self):
        return super().to_json() | {"limit": self.limit}


@pytest.mark.slow
def test_a_task_of_ones_own_trains_and_loads(pretrained, tmp_path):
    dev = common.sentiment(12, offset=32)
    task = Praise(source={"train": common.sentiment(32), "dev": dev}.get, limit=0.4)
    values = {"encoder": pretrained, "output_dir": str(tmp_path / "out"), "epochs": 1.0}
    values |= {"max_seq_length": 16, "train_batch_size": 8, "learning_rate": 3e-3}

    def run(**others):
        return finetuning.run(config(**values, **others), lambda line: None, task)

    with pytest.raises(ValueError, match=r"no serving_outputs.*--noexport_saved_model"):
        run()
    report = run(export_saved_model=False)
    home = FinetuningFolder(tmp_path / "out")
    loaded = saved.from_json(home.about())
    assert isinstance(loaded, Praise)
    assert (loaded.name, loaded.limit) == ("praise", 0.4)
    rows = loaded.featurize(dev, home.tokenizer(print), 16)
    answers = loaded.decode(Outputs(home.load(), 5)(rows), rows, dev)
    assert loaded.score(answers, dev) == report["seeds"][0]["scores"]["dev"]
    results = json.loads((home.path / "results.json").read_text())
    assert results["summary"]["dev"]["hits"]["baseline"] is None
    assert len((home.path / "predictions.tsv").read_text().splitlines()) == 1 + len(dev)
