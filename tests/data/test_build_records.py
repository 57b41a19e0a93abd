import contextlib
import errno
import gzip
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest
import tensorflow as tf

from electra_tf.data import corpora, records, units
from electra_tf.data.build_records import build_records
from electra_tf.data.corpora import open_corpus
from electra_tf.data.records import parse_batch, read_manifest, verify
from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import SPECIAL_TOKENS, Vocabulary

WORDS = ["w" + "abcdefghij"[i // 10] + "abcdefghij"[i % 10] for i in range(100)]
VOCABULARY = Vocabulary((*SPECIAL_TOKENS, *WORDS))
ROOT = pathlib.Path(__file__).parents[2]


def text(documents, *, seed=0, lines=12, words=20):
    rng = random.Random(seed)
    return "\n\n".join(
        "\n".join(" ".join(rng.choices(WORDS, k=words)) for _ in range(lines))
        for _ in range(documents)
    )


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(text(400))
    return path


def build(corpus, folder, **options):
    options = {"vocabulary": VOCABULARY, "num_processes": 1, **options}
    options = {"log": lambda message: None, **options}
    return build_records([str(corpus)], folder, **options)


def contents(folder):
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}


def examples(folder, split):
    files = sorted(map(str, pathlib.Path(folder).glob(f"{split}-*.tfrecord")))
    serialized = list(tf.data.TFRecordDataset(files).as_numpy_iterator())
    return parse_batch(tf.constant(serialized)).to_list()


def command(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "electra_tf.data.build_records", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_every_token_of_the_corpus_is_in_the_records(corpus, tmp_path):
    folder = tmp_path / "records"
    manifest = build(corpus, folder)
    rows = examples(folder, "train") + examples(folder, "eval")
    found = sorted(i for row in rows for i in row if i >= len(SPECIAL_TOKENS))
    expected = WordPiece(VOCABULARY).encode(corpus.read_text().splitlines())
    assert found == sorted(i for line in expected for i in line.tolist())
    assert max(map(len, rows)) == 128
    assert verify(folder, thorough=True) == manifest
    assert manifest.num_records == len(examples(folder, "train"))
    assert manifest.num_tokens == sum(map(len, examples(folder, "train")))
    assert manifest.corpus["documents"] == 400
    assert manifest.corpus["lines"] == 4800
    assert len(manifest.train) >= 4
    assert Vocabulary.load(folder / "vocab.txt") == VOCABULARY
    assert not list(folder.glob(".build")), "no work files are left"


@pytest.mark.slow
def test_output_does_not_depend_on_the_number_of_processes(corpus, tmp_path):
    build(corpus, tmp_path / "one", num_processes=1)
    build(corpus, tmp_path / "two", num_processes=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    build(corpus, tmp_path / "other", seed=1)
    assert contents(tmp_path / "one") != contents(tmp_path / "other")


def test_unknown_tokens_are_counted_and_questioned(corpus, tmp_path):
    told = []
    assert build(corpus, tmp_path / "a", log=told.append).corpus["unknown_tokens"] == 0
    assert not [line for line in told if "[UNK]" in line]
    corpus.write_text(corpus.read_text().replace("waa", "xxx").replace("wbb", "yyy"))
    manifest = build(corpus, tmp_path / "b", log=told.append)
    rows = examples(tmp_path / "b", "train")
    unknown = sum(row.count(VOCABULARY.unk_id) for row in rows)
    assert manifest.corpus["unknown_tokens"] == unknown > 0
    share = unknown / sum(map(len, rows))
    (line,) = [line for line in told if "[UNK]" in line]
    assert f"{share:.1%} of the tokens are [UNK]" in line


def test_examples_of_a_shard_are_shuffled(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n\n".join(f"{word} " * 30 for word in WORDS))
    build(path, tmp_path / "records", eval_fraction=0)
    firsts = [row[1] for row in examples(tmp_path / "records", "train")]
    assert sorted(set(firsts)) == list(range(5, 105))
    assert firsts != sorted(firsts)


def test_held_out_documents_are_chosen_by_their_text(corpus, tmp_path):
    build(corpus, tmp_path / "a", eval_fraction=0.1)
    held_out = {tuple(row) for row in examples(tmp_path / "a", "eval")}
    share = len(held_out) / len(examples(tmp_path / "a", "train"))
    assert 0.05 < share < 0.2
    longer = tmp_path / "longer.txt"
    longer.write_text(f"{text(50, seed=9)}\n\n{corpus.read_text()}")
    documents = longer.read_text().split("\n\n")
    sides = {d: units.document_hash(d.split("\n")) for d in documents}
    held_out = units.hold_out(sources_of(longer), 0.1)
    assert (
        held_out == units.hold_out(sources_of(corpus), 0.1) == range(int(0.1 * 2**64))
    )
    assert 0.05 < sum(side in held_out for side in sides.values()) / len(sides) < 0.2


def sources_of(path):
    return open_corpus([str(path)])


@pytest.mark.parametrize("fraction", [1e-9, 0.999999])
def test_at_least_one_document_is_held_out_and_never_all(fraction, tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(text(30))
    build(path, tmp_path / "records", eval_fraction=fraction)
    assert examples(tmp_path / "records", "train")
    assert examples(tmp_path / "records", "eval")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fraction", [0.01, 0.3])
def test_a_document_that_is_nearly_all_of_the_corpus_is_not_held_out(
    seed, fraction, tmp_path
):
    """Whichever of the two has the lower hash, and on whichever side of the bound."""
    (tmp_path / "large.txt").write_text(text(1, seed=seed, lines=900))
    (tmp_path / "small.txt").write_text(text(1, seed=seed + 100, lines=3))
    small = sum(map(len, (tmp_path / "small.txt").read_text().splitlines()))
    manifest = build(tmp_path, tmp_path / "records", eval_fraction=fraction)
    assert sum(shard.tokens for shard in manifest.eval) < small
    assert manifest.eval
    assert manifest.num_tokens > 900 * 20


def test_nothing_is_held_out_of_few_large_documents_and_that_is_said(tmp_path):
    path = tmp_path / "corpus.txt"
    for documents in (1, 3):
        path.write_text(text(documents))
        told = []
        manifest = build(path, tmp_path / str(documents), log=told.append)
        assert manifest.eval == ()
        (line,) = [line for line in told if "nothing is held out" in line]
        assert "--eval_records" in line


def test_nothing_is_held_out_at_zero(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(text(5))
    told = []
    manifest = build(path, tmp_path / "a", eval_fraction=0, log=told.append)
    assert manifest.eval == ()
    assert not [line for line in told if "nothing is held out" in line]


def test_a_finished_build_is_reused_or_refused(corpus, tmp_path):
    folder = tmp_path / "records"
    first = build(corpus, folder)
    stamp = (folder / first.train[0].name).stat().st_mtime_ns
    messages = []
    assert build(corpus, folder, log=messages.append) == first
    assert "using them" in messages[-1]
    with pytest.raises(ValueError, match="seed is 0 there and 1 here"):
        build(corpus, folder, seed=1)
    assert (folder / first.train[0].name).stat().st_mtime_ns == stamp
    build(corpus, folder, seed=1, overwrite=True)
    assert read_manifest(folder).settings["seed"] == 1
    corpus.write_text(text(401))
    with pytest.raises(ValueError, match="corpus_sha256"):
        build(corpus, folder, seed=1)


def test_foreign_files_are_not_touched(corpus, tmp_path):
    (tmp_path / "train-0.tfrecord").write_text("precious")
    with pytest.raises(ValueError, match="without a manifest"):
        build(corpus, tmp_path)
    (tmp_path / "train-0.tfrecord").unlink()
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "other"]))
    with pytest.raises(ValueError, match="is another vocabulary"):
        build(corpus, tmp_path)


class Killed(BaseException):
    pass


@contextlib.contextmanager
def killed_after(monkeypatch, count):
    """The build within is killed after so many units; gives their numbers."""
    built = []
    original = units.UnitBuilder.build

    def interrupted(self, unit, report):
        if len(built) == count:
            raise Killed
        built.append(unit.index)
        return original(self, unit, report)

    with monkeypatch.context() as patch:
        patch.setattr(units.UnitBuilder, "build", interrupted)
        with pytest.raises(Killed):
            yield built


def test_a_resumed_build_equals_an_uninterrupted_one(corpus, tmp_path, monkeypatch):
    build(corpus, tmp_path / "whole")
    original = units.UnitBuilder.build
    with killed_after(monkeypatch, 2) as built:
        build(corpus, tmp_path / "resumed")
    with pytest.raises(ValueError, match=r"unfinished build .* max_seq_length is"):
        build(corpus, tmp_path / "resumed", max_seq_length=64)

    def recorded(self, unit, report):
        built.append(unit.index)
        return original(self, unit, report)

    monkeypatch.setattr(units.UnitBuilder, "build", recorded)
    build(corpus, tmp_path / "resumed")
    assert built == sorted(set(built)), "finished units are not built again"
    assert contents(tmp_path / "whole") == contents(tmp_path / "resumed")


def test_interrupted_while_shards_get_their_names(corpus, tmp_path, monkeypatch):
    def killed(self, folder):
        raise Killed

    build(corpus, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(records.Manifest, "save", killed)
        with pytest.raises(Killed):
            build(corpus, tmp_path / "resumed")
    build(corpus, tmp_path / "resumed")
    assert contents(tmp_path / "whole") == contents(tmp_path / "resumed")


@pytest.mark.slow
@pytest.mark.distributed
def test_killed_mid_way_and_run_again(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(text(20_000))
    VOCABULARY.save(tmp_path / "vocab.txt")
    arguments = [
        f"--corpus={corpus}",
        f"--vocab_file={tmp_path / 'vocab.txt'}",
        "--num_processes=2",
    ]
    killed = tmp_path / "killed"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "electra_tf.data.build_records",
            f"--output_dir={killed}",
            *arguments,
        ],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while len(list(killed.glob(".build/unit-*.json"))) < 3:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(1)  # The workers see that their parent is gone.
    stamps = {p: p.stat().st_mtime_ns for p in killed.glob(".build/unit-*.json")}
    assert 3 <= len(stamps) < 16
    again = command(f"--output_dir={killed}", *arguments)
    assert again.returncode == 0, again.stderr
    assert f"{len(stamps)} of 16 units are finished already" in again.stderr
    assert command(f"--output_dir={tmp_path / 'whole'}", *arguments).returncode == 0
    assert contents(killed) == contents(tmp_path / "whole")


def test_full_disk_leaves_no_partial_file(corpus, tmp_path, monkeypatch):
    written = []

    def full(self, record):
        written.append(record)
        if len(written) > 50:
            raise tf.errors.ResourceExhaustedError(None, None, "full")

    monkeypatch.setattr(tf.io.TFRecordWriter, "write", full)
    with pytest.raises(OSError, match="No space left") as caught:
        build(corpus, tmp_path / "records")
    assert caught.value.errno == errno.ENOSPC
    assert not list(tmp_path.rglob("*.tmp"))


def test_wrong_settings_are_refused_before_anything_is_written(corpus, tmp_path):
    for options in (
        {"segmenting": "x"},
        {"max_seq_length": 4},
        {"eval_fraction": 1},
        {"shard_megabytes": float("inf")},
        {"shard_megabytes": float("nan")},
    ):
        with pytest.raises(ValueError, match=r"must be"):
            build(corpus, tmp_path / "records", **options)
    assert not (tmp_path / "records").exists()


def test_compressed_files_give_the_records_of_plain_ones(tmp_path):
    content = text(1500)
    (tmp_path / "a.txt").write_text(content)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content.encode()))
    plain = build(tmp_path / "a.txt", tmp_path / "plain")
    packed = build(tmp_path / "a.txt.gz", tmp_path / "packed", shard_megabytes=1)
    assert len(packed.train) > 1, "a compressed file is shared between processes too"
    assert plain.corpus["documents"] == packed.corpus["documents"] == 1500


def test_a_long_document_is_encoded_some_lines_at_a_time(tmp_path, monkeypatch):
    path = tmp_path / "corpus.txt"
    path.write_text(text(1, lines=100) + "\n\n" + text(20))
    build(path, tmp_path / "whole")
    sizes = []
    encode = WordPiece.encode

    def recorded(self, texts):
        sizes.append(len(texts))
        return encode(self, texts)

    monkeypatch.setattr(units, "_LINES_AT_ONCE", 7)
    monkeypatch.setattr(WordPiece, "encode", recorded)
    build(path, tmp_path / "parts")
    assert max(sizes) == 7
    assert contents(tmp_path / "whole") == contents(tmp_path / "parts")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_long_documents_are_questioned(suffix, tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "LONG_DOCUMENT", 3 << 20)
    content = text(1, lines=45_000).encode()
    path = tmp_path / f"corpus.txt{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    options = {"eval_fraction": 0, "shard_megabytes": 1}
    told = []
    build(path, tmp_path / "a", log=told.append, **options)
    (line,) = [line for line in told if "no blank line" in line]
    assert f"the first 3 MB of {path}: is this one document?" in line
    (tmp_path / "two.txt").write_bytes(content[:2_000_000] + b"\n \n" + content)
    told.clear()
    build(tmp_path / "two.txt", tmp_path / "b", log=told.append, **options)
    build(path, tmp_path / "c", log=told.append, blank_lines_separate=False, **options)
    assert not [line for line in told if "no blank line" in line]


def test_units_group_small_files_and_cut_big_ones(tmp_path):
    for number in range(50):
        (tmp_path / f"{number:02d}.txt").write_text("a" * 4000)
    (tmp_path / "big.txt").write_text("b\n\n" * 200_000)
    planned = units.plan_units(open_corpus([str(tmp_path)]), 1 << 17)
    assert [unit.index for unit in planned] == list(range(len(planned)))
    assert sum(unit.size for unit in planned) == 50 * 4000 + 600_000
    assert max(unit.size for unit in planned) < 1.6 * units.MIN_UNIT_BYTES
    assert len(planned[0].sources) > 10


@pytest.mark.slow
def test_command_line_blank_lines(tmp_path):
    """Blank lines separate or not, short documents count, by the real command.

    (pitfalls 4 and 5 of docs/fidelity.md)
    """
    (tmp_path / "corpus.txt").write_text("waa wab\n\nwac wad")
    VOCABULARY.save(tmp_path / "vocab.txt")
    arguments = [
        f"--corpus={tmp_path / 'corpus.txt'}",
        f"--vocab_file={tmp_path / 'vocab.txt'}",
        "--eval_fraction=0",
    ]
    counts = []
    for flag in ("--blank_lines_separate", "--noblank_lines_separate"):
        folder = tmp_path / flag
        done = command(f"--output_dir={folder}", flag, *arguments)
        assert done.returncode == 0, done.stderr
        counts.append(read_manifest(folder).num_records)
    assert counts == [2, 1]


def test_command_line_help():
    shown = command("--help").stdout
    for name in ("corpus", "segmenting", "blank_lines_separate", "eval_fraction"):
        assert f"--{name}" in shown or f"--[no]{name}" in shown
    assert "Examples:" in shown


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n \n", "the corpus is empty"),
        (b"GIF89a\0\0", "looks binary"),
        (b"caf\xe9 au lait", "not UTF-8 at byte 3"),
    ],
)
def test_unreadable_text(content, message, tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        build(path, tmp_path / "out")
    # The mended file is built without being asked to overwrite the failure.
    path.write_text(text(3))
    build(path, tmp_path / "out")


def test_command_line_errors_are_one_line(tmp_path):
    (tmp_path / "corpus.txt").write_bytes(b"GIF89a\0\0")
    VOCABULARY.save(tmp_path / "vocab.txt")
    done = command(
        f"--corpus={tmp_path / 'corpus.txt'}",
        f"--vocab_file={tmp_path / 'vocab.txt'}",
        f"--output_dir={tmp_path / 'out'}",
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert "corpus.txt: looks binary (a zero byte at byte 6)" in line


def test_command_line_unwritable_output(tmp_path, corpus):
    (tmp_path / "file").write_text("")
    VOCABULARY.save(tmp_path / "vocab.txt")
    done = command(
        f"--corpus={corpus}",
        f"--vocab_file={tmp_path / 'vocab.txt'}",
        f"--output_dir={tmp_path / 'file' / 'out'}",
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "error: [Errno" in done.stderr
