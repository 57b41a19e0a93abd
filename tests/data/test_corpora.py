import csv
import errno
import importlib
import os
import random
from pathlib import Path

import fsspec
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from fsspec.spec import AbstractBufferedFile

from electra_tf.data import corpora, tables
from electra_tf.data.corpora import open_corpus
from electra_tf.errors import UserError
from tests.data.common import packed, table


def documents(*specs, **options):
    sources = open_corpus(specs, **options)
    return [document for source in sources for document in source.documents()]


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(packed(name, data))
        return path

    return write


def test_blank_lines_separate_documents(write):
    for text in ("\n one \ntwo\n\n \t\n\nthree", "\ufeffone\r\ntwo\r\n\r\nthree\r\n"):
        path = write("a.txt", text)
        assert documents(path) == [["one", "two"], ["three"]]
        assert documents(path, blank_lines_separate=False) == [["one", "two", "three"]]


def test_a_long_line_is_cut_at_spaces(write, monkeypatch):
    line = "ab  c \u00e9\U0001f600 " * 9 + "\u4e2d" * 40
    path = write("a.txt", f"x\n\ny\n{line}\nz\n{' ' * 50}\nv")
    monkeypatch.setattr(corpora, "LONG_LINE", 16)
    first, (y, *parts, z), last = documents(path)
    assert (first, y, z, last) == (["x"], "y", "z", ["v"])
    assert max(map(len, parts)) <= 16
    assert "".join(parts).replace(" ", "") == line.replace(" ", "")
    assert parts[0] == "ab  c \u00e9\U0001f600 ab  c"


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_compressed_text_reads_as_the_plain_file(suffix, write):
    text = "one\ntwo\n\nthree\n" * 9
    path = write(f"a.txt{suffix}", text)
    assert documents(path) == documents(write("b.txt", text))
    if suffix == ".gz":
        assert open_corpus([str(path)])[0].size >= len(text)
    whole = path.read_bytes()
    path.write_bytes(whole + whole)  # Compressed in two parts.
    assert documents(path) == documents(write("b.txt", text * 2))
    damaged = [whole[:-12], whole[: len(whole) // 2], b"not compressed at all"]
    # The modules `bz2` and `lzma` would ignore the second part and all after it.
    damaged.append(whole + b"?" + whole[1:] + whole)
    damaged.append(whole + whole[: len(whole) // 2])
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"a\.txt\{suffix}: cannot be unpacked"):
            documents(path)


def test_other_files_of_a_folder_are_listed_in_one_line(write, tmp_path):
    """Suffixes match in any case; hidden and empty files are not listed."""
    names = ["a.TXT", "b/a.Md", "b/x.txt", "c.txt.GZ", "d.rst"]
    for name in (*reversed(names), ".h.txt", ".hidden.json", ".git/x.json"):
        write(name, name)
    write("empty.txt", "")
    said = []
    sources = open_corpus([tmp_path], log=said.append)
    found = [document for source in sources for document in source.documents()]
    assert found == [[name] for name in names]
    assert said == []
    for name in ("AA/wiki_00", "AA/wiki_01", "d.bz2", "e.xz", "f.json"):
        write(name, "left out")
    assert open_corpus([tmp_path], log=said.append) == sources
    (line,) = said
    assert "AA/wiki_00" in line
    assert line.count("and 2 more files") == 1


def test_links_and_repeated_files_are_read_once(write, tmp_path):
    corpus, other = tmp_path / "corpus", tmp_path / "other"
    write("other/x.txt", "linked")
    write("corpus/a.txt", "plain")
    assert documents(tmp_path / "**" / "*.txt", other) == [["plain"], ["linked"]]
    (corpus / "b").symlink_to(other)
    for folder in (corpus, other):
        (folder / "loop").symlink_to(corpus)
    assert documents(corpus) == [["plain"], ["linked"]]


def test_broken_links_and_unreadable_folders_are_named(write, tmp_path, monkeypatch):
    def scandir(path):
        if Path(path).name == "b":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    scan = os.scandir
    monkeypatch.setattr(os, "scandir", scandir)
    write("a.txt", "text")
    write("b/c.txt", "unreadable")
    (tmp_path / "d.txt").symlink_to(tmp_path / "moved.txt")
    said = []
    for spec in (tmp_path, tmp_path / "*.txt", tmp_path / "*"):
        assert documents(spec, log=said.append) == [["text"]]
        assert "d.txt (broken link)" in said[-1]
    assert f"{tmp_path}/b (Permission denied)" in said[0]
    assert f"{tmp_path}/b (folder)" in said[2]
    # As unpacked from an archive in Latin-1.
    name = os.fsencode(tmp_path) + b"/caf\xe9.txt"
    os.rename(tmp_path / "a.txt", name)
    sources = open_corpus([os.fsdecode(name)])
    assert corpora.corpus_hash(sources) != corpora.corpus_hash([])


def test_outputs_are_left_out_of_folders_and_patterns(write, tmp_path):
    write("a.txt", "text")
    write("out/own/b.txt", "own text")
    write("other/vocab.txt", "token")
    out = write("out/vocab.txt", "token").parent
    for spec, text in (
        (tmp_path, "text"),
        (tmp_path / "**", "text"),
        (out / "vocab.txt", "token"),
    ):
        assert documents(spec, outputs=[out]) == [[text]]
    for spec in (out / "*", out / "own"):
        with pytest.raises(UserError, match="files of the output folder"):
            documents(spec, outputs=[out])


@pytest.mark.parametrize("seed", range(20))
def test_ranges_hold_every_document_exactly_once(seed, write):
    rng = random.Random(seed)
    lines = []
    for _ in range(rng.randrange(1, 30)):
        line = "".join(rng.choices("ab\u00e9\u4e2d ", k=rng.randrange(1, 9)))
        blank = rng.choice(["\n", "\r\n", "  \n", "\n\n"])
        lines.append(f"{line}\n" if rng.random() < 0.6 else blank)
    (source,) = open_corpus([str(write("a.txt", "".join(lines)))])
    whole = list(source.documents())
    for size in (1, 2, 3, 7, 20):
        parts = source.split(size)
        assert [d for part in parts for d in part.documents()] == whole
        assert sum(part.size for part in parts) == source.size


def test_ranges_look_back_over_long_lines(write):
    text = f"{'x' * 200_000}\n{'y' * 200_000}\n\n{'z' * 150_000}"
    (source,) = open_corpus([str(write("a.txt", text))])
    parts = [list(part.documents()) for part in source.split(60_000)]
    assert [len(document) for part in parts for document in part] == [2, 1]


def test_missing_sources(tmp_path):
    for sources, message in (
        ([tmp_path / "nothing.txt"], "not a file or folder"),
        ([tmp_path], "no file ending in"),
        ([], "no sources"),
        ("installed", "must be a list"),
        (["tfds:"], "must be tfds:"),
    ):
        with pytest.raises(UserError, match=message):
            open_corpus(sources)


def test_tfds_examples_are_documents(tmp_path, monkeypatch):
    text = tfds.features.Text()
    rows = {"title": "\ufeffT", "text": "one\n\ntwo \u00e9\r\n"}
    tfds.dataset_builders.store_as_tfds_dataset(
        "toy_corpus",
        version="1.0.0",
        features=tfds.features.FeaturesDict({"title": text, "text": text}),
        split_datasets={"train": tf.data.Dataset.from_tensors(rows)},
        data_dir=tmp_path,
    )
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert documents("tfds:toy_corpus") == [["one", "two \u00e9"]]
    for split in ("1.0.0:train", "train[:50%]+train[50%:]"):
        assert documents(f"tfds:toy_corpus:{split}:title") == [["\ufeffT"]]
    for spec, message in (
        ("toy_corpus:train:label", "text features are"),
        ("toy_corpus:test", "Unknown split"),
        ("imdb_reviews:9.9.9:train", "cannot be loaded at version 9"),
        ("imdb_reviews", r"not prepared in .* text file instead"),
        ("no_such_dataset_anywhere", "no_such_dataset_anywhere"),
    ):
        with pytest.raises(UserError, match=message):
            documents(f"tfds:{spec}")


# Tables: a document per row.

ROWS = ["one\ntwo", 'a "quote", \u00e9', " ", "x\ty\r\nz"]


@pytest.mark.parametrize(
    "name",
    ["a.jsonl", "a.json.gz", "a.ndjson", "a.CSV", "a.csv.xz", "a.tsv", "a.parquet.zst"],
)
def test_rows_of_a_table_are_documents(name, write, tmp_path):
    rows = ROWS if "tsv" not in name else [" one ", "two, three"]
    rows = [{"id": number, "body": text} for number, text in enumerate(rows)]
    path = write(name, table(name, rows))
    lines = [[line.strip() for line in row["body"].splitlines()] for row in rows]
    expected = [document for document in lines if any(document)]
    assert documents(path, text_column="body") == expected
    write("empty.txt", "")
    assert documents(tmp_path, text_column="body") == expected
    message = rf"{name}, (line|row) [123]: no column 'text'"
    with pytest.raises(ValueError, match=message):
        documents(path)
    sources = [open_corpus([path], text_column=column) for column in ("body", "id")]
    assert len({source.fingerprint() for (source,) in sources}) == 2
    write("b.txt", "texts come first")
    assert documents(tmp_path) == [["texts come first"]]
    # Characters that text files cannot hold are replaced.
    path = write("a.jsonl", '{"text": "a \\ud83d b\\n\\u0000\\nc"}')
    assert documents(path) == [["a ? b", "c"]]


ONE_ROW = '{"text": "a"}\n'
NUMBERS = table("a.parquet", [{"text": 3}])
NOT_UTF8 = table("a.parquet", [{"text": "abcd"}]).replace(b"abcd", b"ab\xff\xfe")


class Buffered(AbstractBufferedFile):
    """A file as of a bucket, whose ``readline`` takes no size."""

    def _fetch_range(self, start, end):
        return self.fs.store[self.fs._strip_protocol(self.path)].getvalue()[start:end]


def test_remote_patterns(monkeypatch):
    memory = fsspec.filesystem("memory")
    for name in ("a.jsonl", "b.jsonl.gz", "c.parquet"):
        memory.pipe(f"/mixed/{name}", packed(name, table(name, [{"text": name}])))
    memory.pipe("/mixed/d.txt", b"one\ntwo")
    expected = [["a.jsonl"], ["b.jsonl.gz"], ["c.parquet"], ["one", "two"]]
    assert documents("memory://mixed/*") == expected
    monkeypatch.setattr(type(memory), "open", lambda *given: Buffered(*given))
    assert documents("memory://mixed/*") == expected
    with pytest.raises(ValueError, match="not a file or folder"):
        documents("memory://mixed/*.csv")
    with pytest.raises(ValueError, match=r"a remote folder: .*memory://mixed/\*\*"):
        documents("memory://mixed/")
    with pytest.raises(ValueError, match=r"nowhere://a.*pip install"):
        documents("nowhere://a")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", "the file is empty"),
        ("a.txt", b"good\nbad \xff", "not UTF-8 at byte 9"),
        ("a.txt", b"\xef\xbb\xbfgood\nbad \xff", "not UTF-8 at byte 12"),
        ("a.txt", b"ab\ncd\0", "looks binary .a zero byte at byte 5"),
        ("a.gz", b"ab\n\xff", "not UTF-8 at byte 3"),
        ("a.jsonl", ONE_ROW + '{"text": null}', "line 2: .*, got None"),
        ("a.jsonl", ONE_ROW + '\n{"text": 3}', "line 3: column 'text' .*, got 3"),
        ("a.jsonl", ONE_ROW + '{"body": "b"}', "line 2: no column .* are body: choose"),
        ("a.jsonl", ONE_ROW + '{"text": "b', "line 2: Unterminated string"),
        ("a.jsonl", b"\x00\x01", "looks binary"),
        ("a.csv", b"text\ncaf\xe9", "not UTF-8 at byte 8"),
        ("a.parquet", NUMBERS[:-9], "not a whole Parquet file"),
        ("a.parquet", NUMBERS, "row 1: .*, got 3"),
        ("a.parquet", NOT_UTF8, "not a whole Parquet file .'utf-8' codec"),
    ],
)
def test_unreadable_files_are_named(name, content, message, write):
    with pytest.raises(ValueError, match=rf"a\.\w+[,:] {message}"):
        documents(write(name, content))


def test_a_larger_limit_of_csv_cells_stays():
    limit = csv.field_size_limit(1 << 30)
    importlib.reload(tables)
    assert csv.field_size_limit(limit) == 1 << 30
