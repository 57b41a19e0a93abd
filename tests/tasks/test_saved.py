"""Tasks of other packages, rebuilt from task.json."""

import dataclasses
import json

import keras
import pytest

from electra_tf.tasks import Classification, ClassificationHead, saved


@keras.saving.register_keras_serializable(package="electra_tf_tests")
class OwnHead(ClassificationHead):
    """A head from outside the library."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(Classification):
    kind = "own"
    scale: float = 1.0

    def head(self, encoder):
        return OwnHead(encoder.hidden_size, self.num_outputs)

    def to_json(self):
        return super().to_json() | {"scale": self.scale}


class Other(Own):
    kind = "other"

    @classmethod
    def from_json(cls, about):
        labels = tuple(about["labels"])
        return cls(name="rebuilt", source=None, labels=labels)


def test_tasks_are_rebuilt_by_their_kind():
    task = Own(name="mine", source=None, labels=("a", "b"), scale=2.5)
    again = saved.from_json(json.loads(json.dumps(task.to_json())))
    assert (type(again), again.labels, again.scale) == (Own, ("a", "b"), 2.5)
    other = Other(name="mine", source=None, labels=("a", "b"))
    assert type(saved.from_json(other.to_json())) is Other
    assert saved.from_json(other.to_json()).name == "rebuilt"
    with pytest.raises(ValueError, match=r"kind is .none.; .*own.* Import the module"):
        saved.from_json({**task.to_json(), "kind": "none"})
    kinds = ("classification", "multilabel", "regression", "tagging")
    assert {*kinds, "question_answering", "own", "other"} <= saved.kinds().keys()
