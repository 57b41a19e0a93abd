"""Puts many damaged inputs through every parser and counts the outcomes.

    python -m tests.fuzz.drive --inputs=100000

Every input is derived from a valid file: bytes flipped, cut, repeated, joined with
other inputs, or replaced by tokens that often break parsers. The same --seed gives the
same inputs. Prints a table. Exits with 1 if an input was neither read nor refused by a
one-line error with the file's name, or if it took longer than --seconds.
"""

import argparse
import collections
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz import parsers

# Tokens that often break parsers of text, numbers, JSON, tables, zip and TFRecords.
TOKENS = (
    *(b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\r", b"\x1b[2J"),
    *(b"\x85", "\u2028".encode(), "\u0301".encode() * 50, "\U0001f600".encode()),
    *(b"\t", b"\n\n", b"1e400", b"-1e400", b"NaN", b"Infinity", b"9" * 400, b"-1"),
    *(b"0", b"1.5", b"9" * 5000, b"null", b"true", b"[]", b"{}", b"[" * 2000),
    *(b'{"a":' * 2000, b'""', b'"\\ud800"', b",", b'"', b"'", b"\\", b"|||", b"#"),
    *(b"=", b"--", b":", b"/", b"../..", b"%s", b"PK\x03\x04", b"\xff" * 8),
    *(b"\x00" * 8, b"\x80" * 9 + b"\x01"),
)


def mutated(content: bytes, random_: random.Random) -> bytes:
    """Applies one to five random changes."""
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


def seeded(name: str, inputs: int, seed: int, seconds: float = 5.0) -> dict:
    """Counts the outcomes of one parser on inputs that depend only on the seed."""
    random_ = random.Random(f"{seed} {name}")
    ends, wrong, slowest = collections.Counter(), {}, 0.0
    with tempfile.TemporaryDirectory(prefix="electra_tf_fuzz_") as folder:
        path, content, read = parsers.PARSERS[name](Path(folder))
        kept = [content]
        for number in range(inputs):
            path.write_bytes(content)
            # CPU time does not depend on the load of the machine.
            began = time.process_time()
            end = parsers.judge(read, path)
            took = time.process_time() - began
            slowest = max(slowest, took)
            if took > seconds:
                end = f"took {took:.1f} s"
            if end not in ("read", "refused"):
                kind = end.split(":")[0] + end[-40:]
                wrong.setdefault(kind, f"{end} of {content[:300]!r}")
                end = "wrong"
            ends[end] += 1
            # Inputs that can still be read are changed further.
            if number and end == "read" and len(kept) < 50:
                kept.append(content)
            content = mutated(random_.choice(kept), random_)
    return {
        "inputs": ends.total(),
        **{end: ends[end] for end in ("read", "refused", "wrong")},
        "slowest_seconds": round(slowest, 3),
        "examples": list(wrong.values())[:20],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=100_000, help="over all parsers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=5.0, help="most per input")
    options = parser.parse_args()
    share, total = -(-options.inputs // len(parsers.PARSERS)), collections.Counter()
    for name in parsers.PARSERS:
        row = seeded(name, share, options.seed, options.seconds)
        print(
            f"{name:28} {row['inputs']:8,} inputs {row['read']:8,} read "
            f"{row['refused']:8,} refused {row['wrong']:6,} wrong, slowest "
            f"{row['slowest_seconds']:.3f} s",
            flush=True,
        )
        for example in row["examples"]:
            print(f"    {example}")
        total.update({end: row[end] for end in ("inputs", "read", "refused", "wrong")})
    print(", ".join(f"{count:,} {end}" for end, count in total.items()))
    return 1 if total["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
