import pytest

from tests.api.common import CLASSES, make
from tests.tasks import common


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("preset")
    return common.save_pretrained(folder, layers=1, dropout=0.0).parent


@pytest.fixture(scope="module")
def models(preset):
    return {name: make(name, preset, seed=1) for name in CLASSES}
