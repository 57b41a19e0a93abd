"""Raw text to records against Hugging Face's `encode_batch`, by size of the text.

    python benchmarks/records.py
    python benchmarks/records.py --corpus=wiki.txt --rounds=5

Our side is the command `electra-tf records`, with the start of Python, reading,
tokenizing, building examples, serializing and writing. The other side is `tokenizers`
alone, warm, on the same lines in memory, with the same vocabulary and one thread per
core.

By default the text is the documentation of the installed packages. A text smaller than
`--megabytes` is repeated, a larger one cut off.
"""

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness
from tokenizers import BertWordPieceTokenizer

from electra_tf.config.records import RecordsConfig
from electra_tf.data import open_corpus
from electra_tf.data.building import prepare_vocabulary

LINES_AT_ONCE = 10_000


def write_text(corpus, path, size):
    """Writes documents of the corpus, repeated up to ``size`` bytes."""
    documents = [
        "\n".join(document) for document in open_corpus([corpus])[0].documents()
    ]
    written = 0
    with open(path, "w", encoding="utf-8") as file:
        while written < size:
            for document in documents:
                file.write(f"{document}\n\n")
                written += len(document.encode()) + 2
                if written >= size:
                    break


def resident_bytes(session):
    """Returns the memory of a session's processes; counts shared pages twice."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        # A process may end while its file is read.
        with contextlib.suppress(OSError):
            status = path.read_text().rpartition(")")[2].split()
            if int(status[3]) == session:
                total += int(status[21]) * os.sysconf("SC_PAGE_SIZE")
    return total


def build(text, vocabulary, processes):
    """Builds the records of a text; returns seconds and peak memory in bytes."""
    with tempfile.TemporaryDirectory(dir=text.parent) as folder:
        start = time.perf_counter()
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "electra_tf", "records"),
                *(f"--corpus={text}", f"--vocab_file={vocabulary}"),
                f"--output_dir={folder}/records",
            ],
            preexec_fn=lambda: os.sched_setaffinity(0, range(processes)),
            cwd=harness.ROOT,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        peak = 0
        try:
            while process.returncode is None:
                peak = max(peak, resident_bytes(process.pid))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.1)
        finally:
            # Ctrl-C does not reach another session.
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        seconds = time.perf_counter() - start
    if process.returncode:
        raise RuntimeError(f"electra-tf records ended with {process.returncode}")
    return seconds, peak


def encode(lines, tokenizer):
    """Returns the seconds of `encode_batch` for all lines."""
    start = time.perf_counter()
    for first in range(0, len(lines), LINES_AT_ONCE):
        tokenizer.encode_batch(lines[first : first + LINES_AT_ONCE])
    return time.perf_counter() - start


def growth(text, vocabulary, processes, rounds):
    """Returns seconds and peak memory of builds of an eighth to all of the text."""
    data = text.read_bytes()
    points = []
    for divisor in (8, 4, 2, 1):
        part = text.with_name(f"part-{divisor}.txt")
        part.write_bytes(data[: len(data) // divisor].rpartition(b"\n\n")[0])
        runs = [build(part, vocabulary, processes) for _ in range(rounds)]
        points.append(
            {
                "megabytes": part.stat().st_size / 1e6,
                "seconds": statistics.median(seconds for seconds, _ in runs),
                "peak_megabytes": statistics.median(peak for _, peak in runs) / 1e6,
            }
        )
    return points


def main():
    parser = harness.arguments(__doc__)
    parser.add_argument("--corpus", default="installed", help="file or other source")
    parser.add_argument("--vocab_file", help="by default trained on the corpus")
    parser.add_argument("--megabytes", type=float, default=50.9)
    parser.add_argument("--growth_rounds", type=int, default=2)
    options = parser.parse_args()
    cores = os.cpu_count()
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.txt")
        write_text(options.corpus, text, options.megabytes * 1e6)
        vocabulary = options.vocab_file
        if not vocabulary:
            vocabulary = Path(folder, "vocab.txt")
            prepare_vocabulary(RecordsConfig(corpus=(str(text),), output_dir=folder))
        lines = [line for line in text.read_text("utf-8").split("\n") if line]
        size = text.stat().st_size / 1e6
        os.environ["RAYON_NUM_THREADS"] = str(cores)
        tokenizer = BertWordPieceTokenizer(str(vocabulary), lowercase=True)
        tokenizer.encode_batch(lines[:1000])
        sides = {
            "electra_tf": lambda: size / build(text, vocabulary, cores)[0],
            "encode_batch": lambda: size / encode(lines, tokenizer),
        }
        figures = harness.interleave(sides, options.rounds)
        points = growth(text, vocabulary, cores, options.growth_rounds)
        # One document, which one process builds.
        whole = Path(folder, "whole.txt")
        whole.write_bytes(text.read_bytes().replace(b"\n\n", b"\n"))
        peaks = [build(path, vocabulary, 1)[1] / 1e6 for path in (text, whole)]
    what = f"raw text to records, {size:.1f} MB"
    names = {"ours": "electra_tf", "peer": "encode_batch", "unit": "MB/s"}
    rows = [harness.row(what, figures, bar=2.0, **names)]

    def add(what, unit, value):
        rows.append({"what": what, "unit": unit, "ours": value})

    for point in points:
        of = f"{point['megabytes']:.1f} MB of text"
        add(f"build of {of}", "s", point["seconds"])
        add(f"peak memory, all processes, {of}", "MB", point["peak_megabytes"])
    for peak, kind in zip(peaks, ("with", "without"), strict=True):
        what = f"peak memory, one process, {size:.1f} MB {kind} blank lines"
        add(what, "MB", peak)
    first, last = points[0], points[-1]
    slope = last["seconds"] - first["seconds"]
    rate = (last["megabytes"] - first["megabytes"]) / slope
    add("further text, once started", "MB/s", rate)
    harness.report("records", rows, options.output, growth=points)


if __name__ == "__main__":
    main()
