import pytest

from electra_tf.analysis import Inspector
from electra_tf.tasks import metrics
from tests import tiny_run


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch):
    monkeypatch.setattr(metrics, "RESAMPLES", 60)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tiny_run.save(tmp_path_factory.mktemp("run") / "electra", mask_rate=0.5)


@pytest.fixture(scope="session")
def inspector(folder):
    return Inspector(folder, pytest.fail)
