"""Helpers of all benchmarks: interleaved rounds, ratios with their range, JSON.

Single times on a shared machine are noisy. The sides of a comparison take turns in one
run; a round gives one ratio, and the report has the median, least and largest ratio.
"""

import argparse
import csv
import json
import multiprocessing
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
# The checkout's package, installed or not; scripts import this module first.
sys.path.insert(0, str(ROOT))
_PACKAGES = ("tensorflow", "keras", "tensorflow-text", "numpy", "torch", "transformers")
_VECTOR_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


def hardware() -> dict:
    """Returns cores, processor, vector units and package versions of this machine."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    facts = {key.strip(): value.strip() for key, value in facts.items()}
    flags = facts.get("flags", "").split()
    return {
        "cores": os.cpu_count(),
        "processor": facts.get("model name", platform.processor()),
        "vector_units": [flag for flag in _VECTOR_FLAGS if flag in flags],
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def turns(sides: dict, number: int) -> list[str]:
    """Returns the order of a round, reversed every other round for warm caches."""
    return list(sides) if number % 2 == 0 else list(reversed(sides))


def interleave(
    sides: dict[str, Callable[[], float]], rounds: int
) -> dict[str, list[float]]:
    """Calls each side once per round; a side returns seconds or a rate.

    Warm up (compile, trace) before calling this.
    """
    figures: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in turns(sides, number):
            figures[name].append(sides[name]())
        last = ", ".join(f"{name} {figures[name][-1]:.4g}" for name in sides)
        print(f"  round {number + 1}/{rounds}: {last}", file=sys.stderr)
    return figures


def peak_memory() -> float:
    """Returns the peak memory of this process, MB."""
    # Not getrusage: it includes the peak of the parent process.
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(peak) / 1024


def in_fresh_process(function: Callable, *arguments: object) -> object:
    """Returns a function's result from a new process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def row(
    what: str,
    figures: dict[str, list[float]],
    *,
    ours: str,
    peer: str,
    unit: str,
    bar: float | None = None,
) -> dict:
    """Returns a line of the table: medians of both sides and of the round ratios.

    ``figures`` is the result of ``interleave``, ``ours`` and ``peer`` name its sides.
    More is better in units with ``/s``, less in others. ``bar`` is the ratio to reach.
    """
    pairs = zip(figures[ours], figures[peer], strict=True)
    faster = [a / b if "/s" in unit else b / a for a, b in pairs]
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


def read_tsv(path: Path, **options):
    """Returns a DataFrame of tab-separated columns without quoting."""
    # Here, since startup.py measures imports in a process that imports this module.
    import pandas as pd

    options |= {"sep": "\t", "quoting": csv.QUOTE_NONE, "keep_default_na": False}
    return pd.read_csv(path, index_col=False, **options)


def parser(description: str, *, output: bool = True) -> argparse.ArgumentParser:
    """Returns a parser with the script's docstring as its help, and ``--output``."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if output:
        made.add_argument("--output", type=Path, help="JSON file to write")
    return made


def arguments(description: str, *, rounds: int = 5) -> argparse.ArgumentParser:
    """Returns a parser with the flags of benchmarks that compare two sides."""
    made = parser(description)
    made.add_argument("--rounds", type=int, default=rounds)
    return made


def with_threads(made: argparse.ArgumentParser) -> argparse.Namespace:
    """Parses the command line with ``--threads`` and limits both frameworks to them."""
    from electra_tf.data.pools import cores

    made.add_argument("--threads", type=int, default=cores(), help="of each side")
    options = made.parse_args()

    import tensorflow as tf
    import torch

    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(options.threads)
    torch.set_num_threads(options.threads)
    return options


def report(name: str, rows: Sequence[dict], output: Path | None, **details) -> None:
    """Prints the rows and writes them with versions, hardware and ``details``.

    ``rows`` are from ``row``; without a peer, they have ``what``, ``unit`` and
    ``ours``. ``output`` defaults to ``benchmarks/results/<name>.json``.
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
