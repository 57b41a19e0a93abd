"""Parsers of untrusted files, with a valid file for each.

``PARSERS`` maps names to functions that write valid files into a folder. A function
returns the path of the file to change, its content, and a function that reads it.
Any content must either be read or raise an error that the commands print in one line.
"""

import json
import shutil
from pathlib import Path

import keras
from absl import flags

from electra_tf import cli, doctor, files
from electra_tf.analysis import errors, score
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.config.pretraining import DataConfig, PretrainConfig
from electra_tf.data import pipeline, prepared, records
from electra_tf.data.vocabulary import SPECIAL_TOKENS, Vocabulary
from electra_tf.errors import UserError
from electra_tf.folders import models
from electra_tf.folders.finetuning import FinetuningFolder
from electra_tf.folders.pretraining import PretrainingFolder
from electra_tf.interop.hugging_face import read_config, read_tensors
from electra_tf.interop.tokenizer_files import read_tokenizer
from electra_tf.layers import TextEmbedding
from electra_tf.runs import scores
from electra_tf.runs.search import Search, space
from electra_tf.tasks.sentences import SentenceSource
from electra_tf.tasks.squad import SquadSource
from electra_tf.tasks.tables import TableSource
from tests import tiny
from tests.data.common import save_manifest, silent

VOCABULARY = Vocabulary((*SPECIAL_TOKENS, "one", "two"))
GOLDEN = Path(__file__).parents[1] / "interop" / "golden" / "classifier"
# Errors that ``cli.clear_errors`` prints in one line.
EXPECTED = (UserError, OSError, FloatingPointError, flags.Error)


def _file(name, content, read):
    def make(folder):
        path = folder / name
        return path, content, lambda: read(str(path))

    return make


def _table(name, content, **options):
    about = {"text": ("text",), "label": ("label",), "kind": "classification"}

    def read(path):
        TableSource(files={"train": path}, **about | options)("train")

    return _file(name, content, read)


def _sentences(name, content, words, tags):
    columns = {"word_column": words, "tag_column": tags}

    def read(path):
        SentenceSource(files={"train": path}, **columns)("train")

    return _file(name, content, read)


def _squad(folder):
    path = folder / "train.json"
    answers = [{"text": "one", "answer_start": 0}]
    question = {"id": "1", "question": "what?", "answers": answers}
    other = {"id": "2", "question": "who?", "answers": [], "is_impossible": True}
    paragraph = {"context": "one two", "qas": [question, other]}
    content = json.dumps({"version": "2", "data": [{"paragraphs": [paragraph]}]})
    files = {"train": str(path), "test": str(path)}
    source = SquadSource(files=files, unanswerable=True, log=silent)
    return path, content.encode(), lambda: (source("train"), source("test"))


def _naming(path, read, *arguments):
    """Adds the file to an error that names a flag or another file of the folder."""
    try:
        read(*arguments)
    except EXPECTED as error:
        raise UserError(f"{path}: {error}") from error


def _arguments(path):
    text = Path(path).read_bytes().decode("utf-8", "surrogateescape")
    _naming(path, cli.parse, PretrainConfig, text.split("\n"))


def _flagfile(path):
    _naming(path, cli.parse, FinetuneConfig, [f"--flagfile={path}"])


def _hugging_face(name, read):
    def make(folder):
        home = Path(shutil.copytree(GOLDEN, folder / "model"))
        path = home / name
        content = path.read_bytes()
        if name == "tokenizer.json":
            content = json.dumps(json.loads(content)).encode()
        return path, content, lambda: read(home)

    return make


def _settings(folder):
    flags_of_run = {"hidden_size": 32, "learning_rate": 1e-3, "corpus": ["a"]}
    data = {"vocabulary_sha256": "ab", "lower_case": True}
    content = json.dumps({"config": flags_of_run, "data": data}).encode()
    home = PretrainingFolder(folder)

    def read():
        assert isinstance(home.flags, dict)
        assert isinstance(home.casing, dict)
        assert home.vocabulary_sha256 is None or home.vocabulary_sha256 != 0
        home.check_settings({"config": {"hidden_size": 32}}, ["*"])

    return folder / "config.json", content, read


def _task(described):
    """task.json of a fine-tuned model, with the files that resuming reads."""
    about = {"text_names": ["text"], "max_seq_length": 32, "lower_case": True}
    about |= {"strip_accents": True, "vocabulary_sha256": "ab", **described}
    content = json.dumps(about).encode()
    return _file(
        "task.json", content, lambda path: FinetuningFolder(Path(path).parent).about()
    )


_SEED = {"seed": 0, "scores": {"eval": {"accuracy": 90.0}}, "failure": ""}


def _search(folder):
    first = {"learning_rate": 1e-3, "epochs": 3.0}
    ranges = space(("learning_rate=1e-5:1e-2", "epochs=1:9"), first)
    search = Search(ranges, first, 1, 0, "accuracy", True, folder, log=silent)
    search(lambda number, values: (90.0, ""))
    path = folder / "search.json"
    return path, path.read_bytes(), search.read


def _done(folder):
    home = FinetuningFolder(folder)
    home.finish_seed(_SEED, best=0)
    path = folder / "checkpoints" / "done-0.json"
    return path, path.read_bytes(), home.done


def _tuning_log(path):
    """Reads metrics.jsonl of a fine-tuning run that resumes."""
    FinetuningFolder(Path(path).parent).forget(0, step=4)


def _metrics(folder):
    """metrics.jsonl as the doctor reads it."""
    row = b'{"step": 5, "eval_discriminator_auc": 0.7, "eval_replaced_fraction": 0.1}\n'
    VOCABULARY.save(folder / "vocab.txt")
    files.write_json(folder / "config.json", {"config": {"num_train_steps": 9}})
    home = PretrainingFolder(folder)

    def read():
        home.held_out()
        doctor.examine(doctor.read(folder))

    return folder / "metrics.jsonl", row * 2, read


def _manifest(folder):
    path = folder / records.MANIFEST
    VOCABULARY.save(folder / "vocab.txt")
    shard = records.write_shard(folder / "train-0.tfrecord", [[2, 5, 3], [2, 6, 3]])
    save_manifest(folder, VOCABULARY, [shard], max_seq_length=8)
    config = DataConfig(records=(str(folder),), max_seq_length=8)

    def read():
        prepared.given_data(config, silent)
        pipeline.masking_for(records.verify(folder))

    return path, path.read_bytes(), lambda: _naming(path, read)


def _tfrecords(folder):
    path = folder / "train-0.tfrecord"
    records.write_shard(path, [[2, 5, 3], [2, 6, 300, 3]])
    return path, path.read_bytes(), lambda: records.count_records(path)


def _keras(folder):
    path = folder / "encoder.keras"
    embeddings = TextEmbedding(20, 8, max_positions=8)
    tiny.encoder(embeddings, num_layers=1, hidden_size=8).save(path)
    return path, path.read_bytes(), lambda: models.load(path, keras.Model)


_CLASSES = {"task": "mine", "kind": "classification", "labels": ["a", "b"]}
_PAIR = b'{"sentence_good": "he sits", "sentence_bad": "he sit", "UID": "agreement"}\n'
_N_BEST = (
    b'{"id": "1", "reference": "one two", '
    b'"hypotheses": [{"text": "one", "score": -1.5}, "one too"]}\n'
)
_M2 = (
    b"S the cat sit on mat .\nA 2 3|||R:VERB:SVA|||sits|||REQUIRED|||-NONE-|||0\n"
    b"A 4 4|||M:DET|||the|||REQUIRED|||-NONE-|||1\n\nS it is .\n"
    b"A -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||0\n\n"
)
_FLAGS = (
    b"--num_train_steps=10\n--learning_rate=1e-3\n--corpus=a,b\n--nodry_run\n"
    b"--objective=electra\n--mask_rate=0.15\n--generator_hidden_size=0.25\n"
)
_FLAGFILE = (
    b"# A comment.\n--task=classification\n--train=a.csv\n--text=a,b\n"
    b"--epochs=2.5\n--seeds=3\n--noexport_saved_model\n"
)
_VOCABULARY = "\n".join((*SPECIAL_TOKENS, "one", "##two", "\u00e9t\u00e9", ""))
_CSV = b'text,label,score\n"one, two",b,1.5\nthree,"c ""d""",2\n'
_ROW = b'{"text": "one", "label": "b", "score": 1.5}\n'
_CONLL = b"-DOCSTART- -X- O\n\nthe DT O\ncat NN B-X\n\nit PRP B-Y\n"
_CONLLU = (
    b"# text = it is\n1-2\tit is\t_\t_\n1\tit\t_\tPRON\n2\tis\t_\tVERB\n"
    b"2.1\tx\t_\tX\n\n1\tgo\t_\tVERB\n"
)
_SCORE = {"label": ("score",), "kind": "regression"}
_TAGGED = b'{"words": ["a", "b"], "tags": ["O", "B-X"]}\n'
_LOG = b'{"seed": 0, "step": 5, "loss": 1.5}\n{"seed": 0, "epoch": 1}\n'
PARSERS = {
    "table.csv": _table("train.csv", _CSV),
    "table.tsv": _table("train.tsv", _CSV.replace(b",", b"\t"), kind="multilabel"),
    "table.jsonl": _table("train.jsonl", _ROW * 2),
    "regression.csv": _table("train.csv", _CSV, **_SCORE),
    "regression.jsonl": _table("train.jsonl", _ROW * 2, **_SCORE),
    "squad.json": _squad,
    "conll": _sentences("train.conll", _CONLL, "0", "-1"),
    "conllu": _sentences("train.conllu", _CONLLU, "1", "3"),
    "tagging.jsonl": _sentences("train.jsonl", _TAGGED, "words", "tags"),
    "m2": _file("errors.m2", _M2, lambda path: errors.read_marked(path, silent)),
    "minimal pairs": _file(
        "pairs.jsonl", _PAIR * 2, lambda path: scores.read_pairs([path])
    ),
    "n-best": _file("n_best.jsonl", _N_BEST, score.read),
    "flags": _file("arguments", _FLAGS, _arguments),
    "flagfile": _file("small.cfg", _FLAGFILE, _flagfile),
    "vocab.txt": _file("vocab.txt", _VOCABULARY.encode(), Vocabulary.load),
    "tokenizer.json": _hugging_face("tokenizer.json", read_tokenizer),
    "tokenizer_config.json": _hugging_face("tokenizer_config.json", read_tokenizer),
    "config.json (Hugging Face)": _hugging_face("config.json", read_config),
    "config.json (run)": _settings,
    "metrics.jsonl": _metrics,
    "task.json (classes)": _task(_CLASSES),
    "task.json (tags)": _task(_CLASSES | {"kind": "tagging"}),
    "task.json (answers)": _task({"task": "squad", "kind": "question_answering"}),
    "search.json": _search,
    "done-0.json": _done,
    "metrics.jsonl (task)": _file("metrics.jsonl", _LOG, _tuning_log),
    "model.safetensors": _hugging_face("model.safetensors", read_tensors),
    "manifest.json": _manifest,
    "TFRecords": _tfrecords,
    ".keras": _keras,
}


def judge(read, path):
    """Returns "read", "refused", or a description of the wrong error."""
    try:
        read()
    except EXPECTED as error:
        said = str(error)
        if "\n" in said.strip():
            return f"several lines: {said[:200]!r}"
        if str(path.parent) not in said:
            return f"no file named: {said[:200]!r}"
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]!r}"
    return "read"
