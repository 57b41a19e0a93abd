"""The analyze command: report.html, report.json and one-line errors."""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import matplotlib.image
import numpy as np
import pandas as pd
import pytest

from electra_tf.__main__ import main as command
from electra_tf.analysis import errors, render
from electra_tf.analysis.render import Chart, Section
from electra_tf.analysis.subject import Subject
from electra_tf.cli import note
from electra_tf.config.commands import PARTS, AnalyzeConfig
from tests import tiny_run
from tests.analysis.test_output import Document

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
TEXT = "a good movie <b>was</b> not awful\n\nthe song is fine\n\nbad book\n"
ERRORS = "S a books was bad\nA 1 2|||<kind>|||x|||R|||-|||0\n\n"


def run(model, output, *flags):
    return command(["analyze", f"--model={model}", f"--output={output}", *flags])


def check_page(output):
    """Checks that the page is self-contained and escaped, and returns the JSON."""
    source = (output / "report.html").read_text()
    document = Document(source)
    # Pictures are embedded; the page loads no external resource.
    sources = [value for tag, name, value in document.attributes if name == "src"]
    assert sources
    assert all(value.startswith("data:image/png;base64,") for value in sources)
    assert not re.search(r"https?:|url\(|@import|<script|<link|<kind>", source)
    assert {path.name for path in output.iterdir()} == {"report.html", "report.json"}
    return "".join(document.text), json.loads((output / "report.json").read_text())


def test_page_and_numbers(folder, tmp_path, capsys):
    output, flags = tmp_path / "report", ["--only=errors", "--sentences=8"]
    for name, content in (("text", TEXT), ("errors", ERRORS)):
        (tmp_path / f"{name}.m2").write_text(content * 8)
        flags.append(f"--{name}={tmp_path / name}.m2")
    assert run(folder, output, *flags) == 0
    shown = capsys.readouterr()
    assert "Does it find real errors?" in shown.out
    assert "part 1 of 1: errors" in shown.err
    text, numbers = check_page(output)
    assert "<kind>" in text
    assert [*numbers] == ["model", "errors"]
    rows, *_ = numbers["errors"].values()
    scorers = ["discriminator", "generator", "frequency"]
    assert [row["scorer"] for row in rows] == scorers
    assert {row["data"] for row in rows} == {"errors.m2"}
    with pytest.raises(SystemExit, match="--overwrite"):
        run(folder, output, *flags)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The report of mini without data, and the output of the command."""
    output = tmp_path_factory.mktemp("mini") / "report"
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert run("mini", output) == 0
    return output, out.getvalue(), err.getvalue()


@pytest.mark.slow
def test_all_parts_of_mini_need_no_data(whole):
    output, out, err = whole
    for number, name in enumerate(PARTS, 1):
        assert f"part {number} of {len(PARTS)}: {name}" in err
    assert "left out" not in err
    assert "nan" not in out
    assert "439 words of the sample" in out
    _, numbers = check_page(output)
    assert [*numbers] == ["model", *PARTS]
    rows, *_ = numbers["calibration"].values()
    kinds = [row["corruption"] for row in rows if row["stage"] == "scaled"]
    assert kinds == ["own generator", "unigram", "uniform"]
    assert all(0 <= row["ECE"] <= 1 for row in rows)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason=f"none of {', '.join(NAMES)} on the PATH")
def test_a_browser_shows_the_page_from_disk(whole, tmp_path):
    # This script counts the pictures; the page itself has no script.
    counting = (
        "<script>onload = () => { console.log(`${document.images.length} "
        "pictures, ${[...document.images].filter(i => !i.naturalWidth).length} "
        "broken, ${performance.getEntriesByType('resource').filter(e => "
        "!e.name.startsWith('data:')).length} fetched`); }</script>"
    )
    page, target = tmp_path / "counted.html", tmp_path / "page.png"
    source = (whole[0] / "report.html").read_text()
    assert source.count("<section>") == len(PARTS)
    page.write_text(source.replace("</head>", f"{counting}</head>"))
    command = [
        *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu"),
        *("--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND"),
        *(f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1000,1400"),
        *(f"--screenshot={target}", page.as_uri()),
    ]
    # A process group, so that one signal ends all processes of the browser.
    with subprocess.Popen(
        command, start_new_session=True, stderr=subprocess.PIPE, text=True
    ) as browser:
        try:
            _, err = browser.communicate(timeout=60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(browser.pid, signal.SIGKILL)
    assert browser.returncode == 0, err
    pictures = source.count("<img ")
    assert pictures >= len(PARTS)
    # The console has the line of the script, and no error.
    (line,) = [line for line in err.splitlines() if ":CONSOLE:" in line]
    assert f'"{pictures} pictures, 0 broken, 0 fetched"' in line
    pixels = matplotlib.image.imread(target)[..., :3]
    assert pixels.shape[1] == 1000
    colors = np.unique((pixels.reshape(-1, 3) * 255).astype(int), axis=0)
    assert len(colors) > 100
    # Some pixels are dark (text and pictures); most are white.
    assert 0.01 < (pixels.min(axis=-1) < 0.9).mean() < 0.6


def test_texts_are_escaped_and_numbers_are_plain():
    table = pd.DataFrame({"<name>": ["<script>", "b"], "n": [1234, 2], "x": [0.5, 1]})
    section = Section(
        "<i>title</i>",
        "<b>note</b>",
        {"<caption": table},
        [Chart("<caption", "n", "x", "<name>")],
    )
    source = render.page([section], title="<t>", about="<a>\x1b")
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
    assert [axis.get_title(loc="left") for axis in made.axes] == ["a", "b"]
    line = made.axes[0].containers[0].lines[0]
    assert line.get_xydata().tolist() == [[0, 0.2], [1, 0.4]]
    points = render.figure(table, Chart("t", "panel", "y", kind="points"))
    names = [label.get_text() for label in points.axes[0].get_xticklabels()]
    assert names == ["a", "b"]
    square = table.iloc[:2]
    heat = render.figure(square, Chart("t", "x", "series", kind="heat", color="y"))
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


def test_samples_of_the_package(folder, capsys):
    given = Subject(AnalyzeConfig(model=str(folder), output="x"), note)
    (found,) = errors.read_sentences(given).values()
    wrong = [kind for each in found for kind in each.kinds if kind]
    assert (len(found), len(wrong)) == (40, 51)
    tagged = given.tagged
    assert (len(tagged), sum(len(each.words) for each in tagged)) == (40, 439)
    assert {"NOUN", "VERB", "PUNCT"} < {tag for each in tagged for tag in each.tags}
    assert "no --tagged: taking the 40 sentences" in capsys.readouterr().err


def test_models_that_cannot_be_asked(tmp_path):
    for objective, model, message in (
        ("mlm", tiny_run.electra().generator, "--objective=mlm"),
        ("electric", tiny_run.electric(), "EnergyModel"),
    ):
        saved = tiny_run.save(tmp_path / objective, model, objective=objective)
        with pytest.raises(SystemExit, match=message) as stopped:
            run(saved, tmp_path / "report")
        assert "\n" not in stopped.value.code
    assert not (tmp_path / "report").exists()
