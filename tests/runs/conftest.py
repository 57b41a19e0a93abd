"""Corpus of the end-to-end tests and a pretrained encoder, both read-only."""

import pytest

from tests.end_to_end.conftest import text
from tests.tasks import common

__all__ = ["text"]


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory):
    """Path of an encoder without dropout in the folder of its run."""
    folder = tmp_path_factory.mktemp("pretrained")
    return str(common.save_pretrained(folder, dropout=0.0, layers=1))
