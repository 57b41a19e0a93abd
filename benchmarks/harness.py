"""What all benchmarks share: interleaved rounds, ratios with their spread, JSON.

The machine is shared and noisy, so a time of its own means little. The sides of a
comparison take turns, round by round, in one run; a round gives one ratio, and what is
reported is the median of the ratios with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
# The checkout's package, installed or not; scripts import this module first.
sys.path.insert(0, str(Path(__file__).parent.parent))
_PACKAGES = ("tensorflow", "keras", "tensorflow-text", "numpy", "torch", "transformers")
_VECTOR_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


def hardware() -> dict:
    """Cores, processor, vector units and package versions of this machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    facts = {key.strip(): value.strip() for key, value in facts.items()}
    return {
        "cores": os.cpu_count(),
        "processor": facts.get("model name", platform.processor()),
        "vector_units": [
            flag for flag in _VECTOR_FLAGS if flag in facts.get("flags", "").split()
        ],
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def interleave(
    sides: dict[str, Callable[[], float]], rounds: int
) -> dict[str, list[float]]:
    """Calls each side once a round; a side returns its own figure (seconds or a rate).

    The order turns round every other round, so that neither side always follows the
    other's warm caches. Warm up (compile, trace) before calling this.
    """
    figures: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        names = list(sides) if number % 2 == 0 else list(reversed(sides))
        for name in names:
            figures[name].append(sides[name]())
        print(
            f"  round {number + 1}/{rounds}: "
            + ", ".join(f"{name} {figures[name][-1]:.4g}" for name in sides),
            file=sys.stderr,
        )
    return figures


def peak_memory() -> float:
    """Most memory that this process has held at a time, MB."""
    # Not getrusage: there a process begins with the peak of the one that started it.
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(peak) / 1024


def in_fresh_process(target: Callable, *arguments: object) -> object:
    """What ``target`` sends into the pipe that it gets as its last argument."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(*arguments, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        process.join()


def row(
    what: str,
    figures: dict[str, list[float]],
    *,
    ours: str,
    peer: str,
    unit: str,
    bar: float | None = None,
) -> dict:
    """One line of the table: medians of both sides and the median of the round ratios.

    Args:
        what: what a user waits for.
        figures: the result of ``interleave``.
        ours: the name of our side.
        peer: the name of the side we are compared with.
        unit: ``"seconds"`` or another time unit (less is better), or a rate such as
            ``"tokens/s"`` (more is better).
        bar: the ratio to reach, if there is one.
    """
    faster = [
        (a / b if "/s" in unit else b / a)
        for a, b in zip(figures[ours], figures[peer], strict=True)
    ]
    return {
        "what": what,
        "unit": unit,
        "ours": statistics.median(figures[ours]),
        "peer": statistics.median(figures[peer]),
        "peer_name": peer,
        "ratio": statistics.median(faster),
        "ratio_range": [min(faster), max(faster)],
        "rounds": len(faster),
        "bar": bar,
    }


def arguments(description: str, *, rounds: int = 5) -> argparse.ArgumentParser:
    """A parser with the flags that each benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser


def report(name: str, rows: Sequence[dict], output: Path | None, **details) -> None:
    """Prints the rows and writes them with versions and hardware.

    Args:
        name: the script's name, without ``.py``.
        rows: what ``row`` returned; a figure without a peer is a dict with ``what``,
            ``unit`` and ``ours``.
        output: the file to write; by default ``benchmarks/results/<name>.json``.
        **details: anything else worth keeping (arguments, curves), JSON values.
    """
    for line in rows:
        text = f"{line['what']:56}{line['ours']:12.4g} {line['unit']}"
        if "ratio" in line:
            low, high = line["ratio_range"]
            text += (
                f"   {line['peer_name']} {line['peer']:.4g}"
                f"   ratio {line['ratio']:.2f} ({low:.2f} to {high:.2f})"
            )
        print(text)
    path = output or RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "name": name,
        "command": f"python benchmarks/{name}.py {' '.join(sys.argv[1:])}".strip(),
        "hardware": hardware(),
        "rows": list(rows),
        **details,
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(f"written: {path}", file=sys.stderr)
