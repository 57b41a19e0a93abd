"""Tasks of other packages, rebuilt from task.json."""

import dataclasses

import pytest

from electra_tf.tasks import Classification, saved


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(Classification):
    """tests/runs/test_custom_task.py has a class without ``from_json``."""

    kind = "own"

    @classmethod
    def from_json(cls, about):
        return cls(name="rebuilt", source=None, labels=tuple(about["labels"]))


def test_a_task_may_rebuild_itself():
    about = Own(name="mine", source=None, labels=("a", "b")).to_json()
    again = saved.from_json(about)
    assert (type(again), again.name, again.labels) == (Own, "rebuilt", ("a", "b"))
    with pytest.raises(ValueError, match=r"kind is .none.; .*own.* Import the module"):
        saved.from_json({**about, "kind": "none"})
