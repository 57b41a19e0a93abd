import pytest

from tests.data.common import text


@pytest.fixture
def corpus(tmp_path):
    """A file with 400 documents."""
    path = tmp_path / "corpus.txt"
    path.write_text(text(400))
    return path
