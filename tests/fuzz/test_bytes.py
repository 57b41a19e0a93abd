import pytest

from tests.fuzz import drive, parsers


@pytest.mark.parametrize("name", parsers.PARSERS)
def test_every_input_is_read_or_refused_in_a_line(name):
    report = drive.seeded(name, 60, seed=1)
    assert report["wrong"] == 0, report["examples"]
    assert report["inputs"] == 60
    assert report["read"] > 0, "some of the damaged inputs can still be read"


def test_a_parser_that_breaks_is_found(monkeypatch):
    def breaks(folder):
        path = folder / "x"
        return path, b"good", lambda: {b"good": 1}[path.read_bytes()]

    monkeypatch.setitem(parsers.PARSERS, "broken", breaks)
    report = drive.seeded("broken", 20, seed=0)
    assert report["wrong"] > 10
    assert "KeyError" in report["examples"][0]
