import base64
import io
import json
import re
import sys

import matplotlib.image
import numpy as np
import pandas as pd
import pytest

from electra_tf.__main__ import main as command
from electra_tf.analysis import render
from electra_tf.analysis.render import Chart, Section
from electra_tf.config.commands import PARTS
from tests import tiny_run
from tests.analysis.test_output import Document

TEXT = "a good movie <b>was</b> not awful\n\nthe song is fine\n\nbad book\n"
ERRORS = "S a books was bad\nA 1 2|||<kind>|||x|||R|||-|||0\n\n"
TAGGED = "the DET\ngood ADJ\n\n"


def run(model, output, *flags):
    return command(["analyze", f"--model={model}", f"--output={output}", *flags])


def check_page(output):
    """Checks that the page is self-contained and escaped, and returns the JSON."""
    source = (output / "report.html").read_text()
    document = Document(source)
    sources = [value for tag, name, value in document.attributes if name == "src"]
    assert sources
    for value in sources:
        header, _, picture = value.partition(",")
        assert header == "data:image/png;base64"
        pixels = matplotlib.image.imread(io.BytesIO(base64.b64decode(picture)))
        assert pixels[..., :3].min() < 0.5 < pixels[..., :3].max()
    assert not re.search(r"https?:|url\(|@import|<script|<link|<kind>", source)
    assert {path.name for path in output.iterdir()} == {"report.html", "report.json"}
    return "".join(document.text), json.loads((output / "report.json").read_text())


@pytest.mark.slow
def test_page_and_numbers(folder, tmp_path, capsys):
    output, flags = tmp_path / "report", ["--only=errors,bias", "--sentences=8"]
    for name, content in (("text", TEXT), ("errors", ERRORS), ("tagged", TAGGED)):
        (tmp_path / f"{name}.m2").write_text(content * 8)
        flags.append(f"--{name}={tmp_path / name}.m2")
    assert run(folder, output, *flags) == 0
    shown = capsys.readouterr()
    assert "Does it find real errors?" in shown.out
    assert "part 1 of 2: errors" in shown.err
    # Two groups of each trait are too few for a correlation.
    assert "by group is undefined." in shown.out
    text, numbers = check_page(output)
    assert "<kind>" in text
    assert [*numbers] == ["model", "errors", "bias"]
    rows, *_ = numbers["errors"].values()
    scorers = ["discriminator", "generator", "frequency"]
    assert [row["scorer"] for row in rows] == scorers
    assert {row["data"] for row in rows} == {"errors.m2"}
    with pytest.raises(SystemExit, match="--overwrite"):
        run(folder, output, *flags)


@pytest.mark.slow
def test_all_parts_of_mini_need_no_data(tmp_path, capsys):
    assert run("mini", tmp_path / "report") == 0
    out, err = capsys.readouterr()
    for number, name in enumerate(PARTS, 1):
        assert f"part {number} of {len(PARTS)}: {name}" in err
    assert "left out" not in err
    assert "nan" not in out
    assert "no --tagged: taking the 40 sentences" in err
    assert "439 words of the sample" in out
    _, numbers = check_page(tmp_path / "report")
    assert [*numbers] == ["model", *PARTS]
    rows, *_ = numbers["calibration"].values()
    assert [row["stage"] for row in rows] == ["as it is", "scaled"]
    assert all(0 <= row["ECE"] <= 1 for row in rows)


def test_texts_are_escaped_and_numbers_are_plain():
    table = pd.DataFrame({"<name>": ["<script>", "b"], "n": [1234, 2], "x": [0.5, 1]})
    chart = Chart("<caption", "n", "x", "<name>")
    section = Section("<i>title</i>", "<b>note</b>", {"<caption": table}, [chart])
    source = render.page([section], "<a>\x1b")
    assert "\x1b" not in source
    text = "".join(Document(source).text)
    for shown in ("<i>title</i>", "<b>note</b>", "<name>", "<script>", "1,234"):
        assert shown in text
    assert "<script>" not in source
    table.loc[0, "x"] = np.nan
    first = {"<name>": "<script>", "n": 1234, "x": None}
    assert section.numbers()["<caption"][0] == first


def test_charts_show_the_table():
    rows = [("a", "s", 0, 0.2), ("a", "s", 1, 0.4), ("b", "s", 0, 0.1)]
    table = pd.DataFrame(rows, columns=["panel", "series", "x", "y"])
    table = table.assign(low=table["y"] - 0.1, high=table["y"] + 0.1)
    made = render.figure(table, Chart("t", "x", "y", "panel", "series"))
    assert [axis.get_title() for axis in made.axes] == ["a", "b"]
    line = made.axes[0].containers[0].lines[0]
    assert line.get_xydata().tolist() == [[0, 0.2], [1, 0.4]]
    points = render.figure(table, Chart("t", "panel", "y"))
    names = [label.get_text() for label in points.axes[0].get_xticklabels()]
    assert names == ["a", "b"]
    square = table.iloc[:2]
    heat = render.figure(square, Chart("t", "x", "series", color="y"))
    assert heat.axes[0].images[0].get_array().tolist() == [[0.2, 0.4]]


def test_the_extra_is_named_if_it_is_missing(folder, tmp_path, monkeypatch):
    for name in [*sys.modules]:
        if name.startswith("electra_tf.analysis."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SystemExit, match=r"pandas is missing.*electra_tf\[analysis\]"):
        run(folder, tmp_path / "report")


def test_a_part_without_data_is_left_out_and_said(folder, tmp_path, capsys):
    missing = [f"--{name}={tmp_path / 'none.txt'}" for name in ("text", "tagged")]
    with pytest.raises(SystemExit, match="no part has data"):
        run(folder, tmp_path / "report", *missing)
    assert "left out" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r"none\.txt"):
        run(folder, tmp_path / "report", *missing, "--only=calibration")
    with pytest.raises(SystemExit, match=r"--only=nothing is unknown.*calibration"):
        run(folder, tmp_path / "report", "--only=nothing")


def test_models_without_a_detector_are_refused_at_once(tmp_path):
    saved = tiny_run.save(tmp_path / "a", tiny_run.electric(), objective="electric")
    with pytest.raises(SystemExit, match="EnergyModel") as stopped:
        run(saved, tmp_path / "report")
    assert "\n" not in stopped.value.code
    assert not (tmp_path / "report").exists()
