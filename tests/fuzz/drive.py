"""Puts many damaged inputs through every parser and counts what became of them.

    python -m tests.fuzz.drive --inputs=100000
    python -m tests.fuzz.drive --inputs=100000 --engine=atheris

Every input is derived from a file that is well: bytes flipped, cut, repeated, joined
with others, or replaced by what breaks parsers. The engine "seeded" needs nothing but
Python and gives the same inputs for the same --seed; "atheris" (pip install atheris) is
libFuzzer: it prefers inputs that reach new lines. Prints a table and writes --json;
exit code 1 if any input ended in something else than an answer or one line that names
its file, or took longer than --seconds.
"""

import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# What breaks parsers: of text, numbers, JSON, tables, zip files and TFRecords.
TOKENS = (
    *(
        b"\x00",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b"\r",
        b"\x1b[2J",
        b"\x85",
    ),
    *("\u2028".encode(), "\u0301".encode() * 50, "\U0001f600".encode(), b"\t", b"\n\n"),
    *(
        b"1e400",
        b"-1e400",
        b"NaN",
        b"Infinity",
        b"9" * 400,
        b"-1",
        b"0",
        b"1.5",
        b"9" * 5000,
    ),
    *(
        b"null",
        b"true",
        b"[]",
        b"{}",
        b"[" * 2000,
        b'{"a":' * 2000,
        b'""',
        b'"\\ud800"',
    ),
    *(b",", b'"', b"'", b"\\", b"|||", b"#", b"=", b"--", b":", b"/", b"../..", b"%s"),
    *(
        b"PK\x03\x04",
        b"\xff" * 8,
        b"\x00" * 8,
        b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    ),
)


def mutated(content: bytes, random_: random.Random) -> bytes:
    """One to five changes, somewhere."""
    for _ in range(random_.randint(1, 5)):
        size = len(content)
        a = random_.randint(0, size)
        b = min(size, a + int(random_.expovariate(0.1)))
        kind = random_.randrange(8)
        if kind == 0 and size:
            a = random_.randrange(size)
            flipped = content[a] ^ (1 << random_.randrange(8))
            content = content[:a] + bytes([flipped]) + content[a + 1 :]
        elif kind == 1:
            content = content[:a] + random_.randbytes(b - a) + content[b:]
        elif kind == 2:
            content = content[:a] + content[b:]
        elif kind == 3:
            content = content[:b] + content[a:b] * random_.randint(1, 3) + content[b:]
        elif kind == 4:
            content = content[:a]
        elif kind == 5:
            c = random_.randint(0, size)
            content = content[:a] + content[c : c + b - a] + content[b:]
        else:
            content = content[:a] + random_.choice(TOKENS) + content[b:]
        content = content[:200_000]
    return content


class Counts:
    """What became of the inputs of one parser."""

    def __init__(self, name: str, seconds: float):
        from tests.fuzz import parsers

        self._folder = tempfile.TemporaryDirectory(prefix="electra_tf_fuzz_")
        made = parsers.PARSERS[name](Path(self._folder.name))
        self.path, self.content, self._read = made
        self._judge = parsers.judge
        self._limit = seconds
        self.ends: collections.Counter = collections.Counter()
        self.wrong: dict[str, str] = {}
        self.slowest = 0.0

    def put(self, content: bytes) -> None:
        """Reads one input."""
        self.path.write_bytes(content)
        # Of the processor: what else the machine does is not the parser's.
        began = time.process_time()
        end = self._judge(self._read, self.path)
        took = time.process_time() - began
        self.slowest = max(self.slowest, took)
        if took > self._limit:
            end = f"took {took:.1f} s"
        if end not in ("read", "refused"):
            # One example of each kind.
            kind = end.split(":")[0] + end[-40:]
            self.wrong.setdefault(kind, f"{end} of {content[:300]!r}")
            end = "wrong"
        self.ends[end] += 1

    def report(self) -> dict:
        """Numbers, and an example of everything that is wrong."""
        return {
            "inputs": sum(self.ends.values()),
            **{end: self.ends[end] for end in ("read", "refused", "wrong")},
            "slowest_seconds": round(self.slowest, 3),
            "examples": list(self.wrong.values())[:20],
        }


def seeded(name: str, inputs: int, seed: int, seconds: float = 5.0) -> dict:
    """Inputs that are a function of the seed."""
    counts, random_ = Counts(name, seconds), random.Random(f"{seed} {name}")
    counts.put(counts.content)
    kept = [counts.content]
    for _ in range(inputs - 1):
        content = mutated(random_.choice(kept), random_)
        before = counts.ends["read"]
        counts.put(content)
        # What is still read is worth more changes.
        if counts.ends["read"] > before and len(kept) < 50:
            kept.append(content)
    return counts.report()


def _atheris(name: str, inputs: int, seed: int, seconds: float, out: str) -> None:
    """The same by libFuzzer, which ends the process; the report goes to a file."""
    import atheris

    with atheris.instrument_imports(include=["electra_tf"]):
        counts = Counts(name, seconds)

    def one(data: bytes) -> None:
        counts.put(data)
        if sum(counts.ends.values()) % 100 == 0 or sum(counts.ends.values()) >= inputs:
            Path(out).write_text(json.dumps(counts.report()))

    with tempfile.TemporaryDirectory() as corpus:
        random_ = random.Random(seed)
        Path(corpus, "0").write_bytes(counts.content)
        for number in range(1, 20):
            Path(corpus, str(number)).write_bytes(mutated(counts.content, random_))
        longest = max(20_000, 2 * len(counts.content))
        flags = [f"-runs={inputs}", f"-seed={seed + 1}", "-timeout=60"]
        flags.append(f"-max_len={longest}")
        atheris.Setup([sys.argv[0], *flags, corpus], one)
        atheris.Fuzz()


def main() -> int:
    """Runs as a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=100_000, help="over all parsers")
    parser.add_argument("--engine", choices=("seeded", "atheris"), default="seeded")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=5.0, help="most per input")
    parser.add_argument("--only", help="name of one parser")
    parser.add_argument("--json", help="where the numbers go")
    parser.add_argument("--report", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.report:
        arguments = options.inputs, options.seed, options.seconds
        _atheris(options.only, *arguments, options.report)
        return 0
    # After the flags: it imports TensorFlow.
    from tests.fuzz.parsers import PARSERS

    names = [options.only] if options.only else list(PARSERS)
    share = -(-options.inputs // len(names))
    found = {}
    for name in names:
        if options.engine == "seeded":
            found[name] = seeded(name, share, options.seed, options.seconds)
        else:
            found[name] = _in_process(name, share, options)
        row = found[name]
        print(
            f"{name:28} {row['inputs']:8,} inputs {row['read']:8,} read "
            f"{row['refused']:8,} refused {row['wrong']:6,} wrong, slowest "
            f"{row['slowest_seconds']:.3f} s",
            flush=True,
        )
        for example in row["examples"]:
            print(f"    {example}")
    ends = ("inputs", "read", "refused", "wrong")
    total = {end: sum(row[end] for row in found.values()) for end in ends}
    print(", ".join(f"{count:,} {end}" for end, count in total.items()))
    if options.json:
        about = {"engine": options.engine, "seed": options.seed, "total": total}
        text = json.dumps({**about, "parsers": found}, indent=2)
        Path(options.json).write_text(text + "\n")
    return 1 if total["wrong"] else 0


def _in_process(name: str, inputs: int, options: argparse.Namespace) -> dict:
    """Runs libFuzzer, whose end is the end of its process."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "report.json")
        command = [sys.executable, "-m", "tests.fuzz.drive", f"--inputs={inputs}"]
        command += [f"--only={name}", f"--seed={options.seed}", f"--report={out}"]
        command += [f"--seconds={options.seconds}"]
        done = subprocess.run(command, capture_output=True, env=os.environ, check=False)
        if not out.exists():
            raise RuntimeError(done.stderr.decode()[-2000:])
        report = json.loads(out.read_text())
        if done.returncode:
            report["wrong"] += 1
            report["examples"].append(f"the process ended: {done.stderr[-500:]!r}")
        return report


if __name__ == "__main__":
    sys.exit(main())
