"""Every JSON file with unexpected values is read or refused in one line."""

import copy
import json
import shutil
from pathlib import Path

import pytest

from electra_tf import doctor, files
from electra_tf.api.base import TextModel
from electra_tf.api.loading import fine_tuned
from electra_tf.config.fields import to_flat
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.config.records import RecordsConfig
from electra_tf.data import building
from electra_tf.folders import models
from electra_tf.folders.finetuning import MODEL, TASK, FinetuningFolder
from electra_tf.folders.pretraining import PretrainingFolder
from electra_tf.interop import networks, task_heads
from electra_tf.interop.convert import find_format
from electra_tf.interop.networks import Source
from electra_tf.interop.tokenizer_files import read_tokenizer
from electra_tf.tasks import Classification, QuestionAnswering, Tagging, saved
from tests.fuzz import parsers
from tests.tasks import common

GOLDEN = Path(__file__).parents[1] / "interop" / "golden"

# JSON of every type, of extreme size, and literals that only Python accepts.
STRANGE = (
    *("null", "true", "0", "-1", "1.5", "1e400", "NaN", "9" * 400, "9" * 5000),
    *('""', '"x"', '"../../x"', '"\\ud800"', "[]", "[1]", "[[]]", "{}", '{"x": 1}'),
    "[" * 100_000,
)
_MARK = "a place that is replaced"


def places(value, path=()):
    """Paths to every value inside, root first; only two items of each list."""
    yield path
    if isinstance(value, dict):
        inside = value.items()
    else:
        inside = list(enumerate(value))[:2] if isinstance(value, list) else ()
    for key, inner in list(inside)[:40]:
        yield from places(inner, (*path, key))


def texts(value, below=()):
    """JSON texts with one value at or below ``below`` replaced or removed."""
    for path in places(value):
        if path[: len(below)] != below:
            continue
        root = [copy.deepcopy(value)]
        inner, last = root, 0
        for key in path:
            inner, last = inner[last], key
        inner[last] = _MARK
        marked = json.dumps(root[0])
        for each in STRANGE:
            yield marked.replace(f'"{_MARK}"', each)
        if path:
            del inner[last]
            yield json.dumps(root[0])


def survive(read, path, value, below=()):
    """Reads every variant of a file; returns the number of variants."""
    count = 0
    for text in texts(value, below):
        path.write_text(text, "utf-8", "surrogatepass")
        count += 1
        said = str(path.parent)
        try:
            read()
        except (ValueError, OSError) as error:
            said = str(error)
        assert str(path.parent) in said[:2000], (said, text[:300])
    return count


@pytest.fixture
def golden(tmp_path):
    folder = Path(shutil.copytree(GOLDEN / "classifier", tmp_path / "model"))
    added = {"one_more": len(read_tokenizer(folder)["vocabulary"])}
    files.write_json(folder / "added_tokens.json", added)
    special = {"pad_token": "[PAD]", "cls_token": {"content": "[CLS]"}}
    files.write_json(folder / "special_tokens_map.json", special)
    return folder


@pytest.mark.parametrize(
    "name",
    [
        *("config.json", "tokenizer.json", "tokenizer_config.json"),
        *("added_tokens.json", "special_tokens_map.json"),
    ],
)
def test_hugging_face_folders(golden, name):
    value = files.read_json(golden / name)
    if name == "tokenizer.json":
        value = {n: value[n] for n in ("normalizer", "model")}
    known = set()

    def read():
        source = Source(str(golden))
        model = find_format(source).read(source)
        # A changed config that can be read must still build a network.
        if repr(model.main.sizes) not in known:
            known.add(repr(model.main.sizes))
            networks.models(model)
        if name == "config.json":
            doctor.examine(doctor.read(golden))

    read()
    assert survive(read, golden / name, value) > 30


def test_settings_of_a_run(tmp_path):
    """Read by doctor and by the loaders of models."""
    parsers.VOCABULARY.save(tmp_path / "vocab.txt")
    flags = json.loads(json.dumps(to_flat(PretrainConfig())))
    path = tmp_path / "config.json"

    def read():
        folder = PretrainingFolder(tmp_path)
        assert folder.flags.keys() <= flags.keys() | {"x"}
        assert all(isinstance(value, bool) for value in folder.casing.values())
        if "config" in folder.settings:
            doctor.examine(doctor.read(tmp_path))

    data = {"vocabulary_sha256": parsers.VOCABULARY.sha256, "lower_case": True}
    told = {"config": {}, "data": data, "imported": {"format": "google_tf1"}}
    count = survive(read, path, told)
    for name in flags:
        some = ("hidden_size", "learning_rate", "warmup_steps", "max_seq_length")
        config = {each: flags[each] for each in (name, *some)}
        count += survive(read, path, {"config": config}, ("config", name))
    assert count > 1000


def test_how_a_vocabulary_was_trained(tmp_path):
    corpus = tmp_path / "text.txt"
    corpus.write_text("one two one two three three\n")
    places = {"corpus": (str(corpus),), "output_dir": str(tmp_path)}
    config = RecordsConfig(**places, vocab_size=60)

    def read():
        building.prepare_vocabulary(config, log=lambda _: None)

    read()
    value = files.read_json(tmp_path / "vocab.txt.json")
    assert survive(read, tmp_path / "vocab.txt.json", value) > 100


@pytest.mark.parametrize(
    "name",
    [
        *("squad.json", "table.jsonl", "regression.jsonl", "tagging.jsonl"),
        *("manifest.json", "metrics.jsonl", "search.json"),
        "done-0.json",
    ],
)
def test_files_of_other_parsers(tmp_path, name):
    path, content, read = parsers.PARSERS[name](tmp_path)
    first = content.splitlines()[0] if name.endswith(".jsonl") else content
    assert survive(read, path, json.loads(first)) > 30


def test_a_row_that_lacks_a_column_of_others(tmp_path):
    path, content, read = parsers.PARSERS["tagging.jsonl"](tmp_path)
    path.write_bytes(content + b'{"tags": ["O"]}\n')
    with pytest.raises(ValueError, match=r"jsonl, line 2: column words must hold"):
        read()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classification", "tagging", "squad"])
def test_descriptions_of_fine_tuned_models(tmp_path, monkeypatch, kind):
    """Read by the loader of a fine-tuned model and by the converter."""
    given = {"name": "mine", "source": None}
    task = {
        "classification": lambda: Classification(labels=("a", "b"), **given),
        "tagging": lambda: Tagging(labels=("O", "B-X"), **given),
        "squad": lambda: QuestionAnswering(span_head="independent", **given),
    }[kind]()
    home = FinetuningFolder(tmp_path)
    home.begin(task, common.tokenizer(), 16, {"config": {"text": ["text"]}}, 16)
    network = task.build_model(common.encoder())
    models.save(network, tmp_path / MODEL)
    # Loading the network would take most of the time.
    monkeypatch.setattr(models, "load", lambda path, kind, hint="": network)
    assert fine_tuned(tmp_path).task["kind"] == task.kind

    def keep_task(self, encoder, head, *, task, **values):
        self.kind = saved.from_json(task).kind

    monkeypatch.setattr(TextModel, "__init__", keep_task)
    monkeypatch.setattr(TextModel, "compile_default", lambda self: None)

    def read():
        assert fine_tuned(tmp_path).kind == task.kind
        task_heads.read(Source(str(tmp_path)))

    path = tmp_path / TASK
    value = files.read_json(path)
    assert survive(read, path, value) > 150
    files.write_json(path, value)
    assert survive(read, tmp_path / "config.json", {"config": {"text": ["a"]}}) > 50
