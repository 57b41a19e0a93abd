"""The command: one page, one file of numbers, clear lines for what is impossible."""

import json
import re
import shutil

import pytest

from electra_tf.__main__ import main as command
from electra_tf.analysis import report
from electra_tf.analysis.report import Picture, Section, Table
from electra_tf.config.commands import PARTS
from electra_tf.pretraining import Electric
from tests import tiny, tiny_run
from tests.analysis.test_output import Document
from tests.layers.helpers import randomize
from tests.tasks.common import TOKENS

TEXT = (
    "a good movie <b>was</b> not awful\n\nthe song is fine\n\nbad book was not good\n"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "text.txt").write_text(TEXT * 3)
    edit = "A 1 2|||<kind>|||x|||R|||-|||0\n\n"
    (folder / "errors.m2").write_text(f"S a books was bad\n{edit}" * 8)
    words = ["The/DT", "movie/NN", "was/VBD", "good/JJ", "to/IN", "the/DT", "song/NN"]
    lines = "".join("\t".join(word.split("/")) + "\n" for word in words)
    (folder / "tagged.txt").write_text(f"{lines}\n" * 8)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_run.save(tmp_path_factory.mktemp("run"), mask_rate=0.5)


@pytest.fixture(scope="module")
def flags(data):
    """The data of all parts."""
    return (
        f"--text={data / 'text.txt'}",
        f"--errors={data / 'errors.m2'}",
        f"--tagged={data / 'tagged.txt'}",
        "--sentences=8",
    )


def run(model, output, *flags):
    return command(["analyze", f"--model={model}", f"--output={output}", *flags])


def check_page(output):
    """The page is well-formed and alone, and texts are escaped; returns the numbers."""
    source = (output / "report.html").read_text()
    document = Document(source)
    # Pictures are inside, and nothing is fetched.
    sources = [value for tag, name, value in document.attributes if name == "src"]
    assert sources
    assert all(value.startswith("data:image/png;base64,") for value in sources)
    assert not re.search(r"https?:|url\(|@import|<script|<link", source)
    assert "<kind>" not in source
    assert "<kind>" in "".join(document.text)
    assert {path.name for path in output.iterdir()} == {"report.html", "report.json"}
    return json.loads((output / "report.json").read_text())


def test_page_and_numbers(model, flags, tmp_path, capsys):
    output = tmp_path / "report"
    assert run(model, output, *flags, "--only=errors") == 0
    shown = capsys.readouterr()
    assert "Does it find real errors?" in shown.out
    assert "part 1 of 1: errors" in shown.err
    numbers = check_page(output)
    assert [*numbers] == ["model", "errors"]
    assert [*numbers["errors"]] == ["errors.m2", "rules in tagged.txt"]
    with pytest.raises(SystemExit, match="--overwrite"):
        run(model, output, *flags)


@pytest.mark.slow
def test_all_parts(model, data, flags, tmp_path, capsys):
    output = tmp_path / "report"
    (data / "spans.txt").write_text("the B-X\nbook I-X\nwas O\n\nbad O\n\n" * 4)
    older = shutil.copytree(model, tmp_path / "older")
    more = [f"--beside={older}", f"--spans=thing={data / 'spans.txt'}"]
    assert run(model, output, *flags, *more, "--tune=2,3") == 0
    shown = capsys.readouterr()
    for number, name in enumerate(PARTS, 1):
        assert f"part {number} of {len(PARTS)}: {name}" in shown.err
    assert "left out" not in shown.err
    numbers = check_page(output)
    assert [*numbers] == ["model", *PARTS]
    found = numbers["errors"]["errors.m2"]
    precisions = {w: f["average_precision"] for w, f in found["found"].items()}
    for who, lead in found["ahead"].items():
        expected = precisions["discriminator"] - precisions[who]
        assert lead["value"] == pytest.approx(expected)
        assert lead["low"] <= lead["high"]
    tuned = found["tuned"]
    assert tuned["sentences"] == 3
    assert [*tuned["found"]][:2] == ["fine-tuned", "discriminator"]
    assert tuned["gain"]["low"] <= tuned["gain"]["high"]
    assert [*tuned["by_size"]] == ["2", "3"]
    assert tuned["by_size"]["3"]["gain"]["value"] == tuned["gain"]["average_precision"]
    assert {*numbers["suspicion"]["by_trait"]["thing (--spans)"]} == {"X", "outside"}
    assert len(numbers["inspect"]["attention"][0]["shares"]) == 2
    found = numbers["calibration"]["as_it_is"]
    assert [*found] == ["own generator", "unigram", "uniform"]
    assert 0 <= found["uniform"]["ece"] <= 1


def test_texts_are_escaped_and_numbers_are_plain():
    section = Section(
        "<i>title</i>",
        ["<b>note</b>"],
        [Table("<caption", ["<name>"], [["<script>"], [1234], [0.5]])],
        [Picture("<img", {"$a_b$ <x>": lambda axis: axis.plot([0, 1])})],
        {},
    )
    source = report.html([section], title="<t>", about="<a>")
    text = "".join(Document(source).text)
    for shown in ("<i>title</i>", "<b>note</b>", "<name>", "<script>", "1,234"):
        assert shown in text
    assert "<script>" not in source
    assert report.plain({"x": (1, float("nan"))}) == {"x": [1, None]}


def test_a_part_without_data_is_left_out_and_said(model, tmp_path, capsys):
    with pytest.raises(SystemExit, match="no part has its data"):
        run(model, tmp_path / "report")
    assert "left out" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="--text"):
        run(model, tmp_path / "report", "--only=calibration")
    for flag, message in (
        ("--only=nothing", r"--only=nothing is unknown.*calibration"),
        ("--tune=few", "--tune must be whole numbers"),
        ("--tune=1234567890123", "--tune must be whole numbers"),
        ("--only=course", "name folders with --beside"),
        ("--beside=x,y --checkpoints", "exclude each other"),
    ):
        with pytest.raises(SystemExit, match=message):
            run(model, tmp_path / "report", *flag.split())


def test_models_that_cannot_be_asked(data, tmp_path):
    text = f"--text={data / 'text.txt'}"
    pair = tiny_run.electra()
    masked = tiny_run.save(tmp_path / "mlm", pair.generator, objective="mlm")
    with pytest.raises(SystemExit, match="--objective=mlm") as stopped:
        run(masked, tmp_path / "report", text)
    assert "\n" not in stopped.value.code
    energies = tiny.two_tower(Electric, vocab=len(TOKENS))
    randomize(energies.trainable_variables)
    electric = tiny_run.save(tmp_path / "electric", energies, objective="electric")
    with pytest.raises(SystemExit, match="EnergyModel") as stopped:
        run(electric, tmp_path / "report", text)
    assert "\n" not in stopped.value.code
    assert not (tmp_path / "report").exists()


@pytest.mark.slow
def test_a_comparison_is_one_folder(flags, tmp_path):
    """The discriminator of a comparison is asked, and its masked LM beside it."""
    compared = tmp_path / "compared"
    pair = tiny_run.save(compared / "runs" / "electra" / "seed-0", mask_rate=0.5)
    alone = tiny_run.save(compared / "runs" / "bert" / "seed-0", mask_rate=0.5)
    (alone / "discriminator.keras").unlink()
    shutil.copytree(pair, pair / "points" / "0.5")
    (compared / "results.jsonl").write_text("")
    parts = ("errors", "acceptability", "representations")
    assert run(compared, tmp_path / "both", *flags, f"--only={','.join(parts)}") == 0
    assert run(pair, tmp_path / "one", *flags, "--only=errors,acceptability") == 0
    both, one = (check_page(tmp_path / name) for name in ("both", "one"))
    names = {f"{name}/seed-0" for name in ("electra", "bert")}
    assert set(both["representations"]["probes"]["tag"]) == names
    # Both have the same weights, so that the masked LM is the generator of the pair.
    for name, numbers in both["errors"].items():
        masked_lm = numbers["found"].pop("masked LM bert/seed-0")
        assert masked_lm == numbers["found"]["generator"]
        assert numbers["found"] == one["errors"][name]["found"]
    found = both["acceptability"]["errors.m2"]["found"]
    assert found["masked LM bert/seed-0 mean"]["auc"]["rate"] == pytest.approx(
        found["masked_lm mean"]["auc"]["rate"]
    )


def test_a_comparison_that_has_kept_nothing(tmp_path):
    (tmp_path / "results.jsonl").write_text("")
    with pytest.raises(SystemExit, match="kept no models: compare with --keep"):
        run(tmp_path, tmp_path / "out")
