"""Runs the benchmarks one after another and writes docs/performance.md's tables.

    python benchmarks/all.py                        # everything, about half an hour
    python benchmarks/all.py --only=step,serving
    python benchmarks/all.py --collect              # only the tables, from the results

Each run writes a file to results/, <name>.json or <name>-<size>.json. The tables are
between two marks in docs/performance.md; the other text is written by hand.
"""

import json
import subprocess
import sys
from pathlib import Path

import harness

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
BEGIN = "<!-- written by benchmarks/all.py -->"
END = "<!-- end of what benchmarks/all.py writes -->"
# Headings and sizes of the scripts, in the order of the page.
SCRIPTS = {
    "step": ("Training step", ("tiny", "mini", "small")),
    "records": ("Raw text to records", ()),
    "finetuning": ("Fine-tuning", ()),
    "serving": ("Serving", ("mini", "small")),
    "startup": ("Start-up and fixed costs", ()),
    "growth": ("Growth", ()),
}


def number(value):
    """Formats three significant digits; keeps all digits of the integer part."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def table(name, results):
    """Formats the rows of all runs of a script as Markdown."""
    commands = [f"    {result['command']}" for result in results]
    lines = [f"### {SCRIPTS[name][0]}", "", *commands, ""]
    rows = [row for result in results for row in result["rows"]]
    if not any("ratio" in row for row in rows):
        return "\n".join(lines + _by_unit(rows))
    lines += [
        "| what | unit | electra_tf | peer | ratio (range over rounds) | goal |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        peer = ratio = bar = ""
        if row.get("ratio") is not None:
            low, high = row["ratio_range"]
            peer = f"{row['peer_name']}: {number(row['peer'])}"
            ratio = f"**{row['ratio']:.2f}** ({low:.2f} to {high:.2f})"
            bar = f"{row['bar']:g}" if row.get("bar") else ""
        lines.append(
            f"| {row['what']} | {row['unit']} | {number(row['ours'])} | {peer} "
            f"| {ratio} | {bar} |"
        )
    return "\n".join(lines)


def _by_unit(rows):
    """Returns tables without a peer: a column per unit, a table per set of units."""
    values = {}
    for row in rows:
        values.setdefault(row["what"], {})[row["unit"]] = number(row["ours"])
    lines, units = [], None
    for what, by_unit in values.items():
        if units != list(by_unit):
            units = list(by_unit)
            lines += [""] if lines else []
            lines += [f"| what | {' | '.join(units)} |", "|---" * len(units) + "|---|"]
        lines.append(f"| {what} | {' | '.join(by_unit.values())} |")
    return lines


def collect():
    """Writes the tables of all results into the page."""
    by_name = {}
    for name, (_, sizes) in SCRIPTS.items():
        files = [f"{name}-{size}.json" for size in sizes] or [f"{name}.json"]
        paths = filter(Path.exists, (harness.RESULTS / file for file in files))
        by_name[name] = [json.loads(path.read_text("utf-8")) for path in paths]
    results = [result for found in by_name.values() for result in found]
    machines = {
        f"{r['hardware']['cores']} cores of {r['hardware']['processor']} "
        f"({', '.join(r['hardware']['vector_units'])}), Python "
        f"{r['hardware']['python']}, "
        + ", ".join(f"{k} {v}" for k, v in r["hardware"]["versions"].items() if v)
        for r in results
    }
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    tables = [table(name, found) for name, found in by_name.items() if found]
    body = "\n\n".join(["Machine: " + "; ".join(sorted(machines)) + ".", *tables])
    PAGE.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{after}", encoding="utf-8")
    print(f"written: {PAGE}", file=sys.stderr)


def main():
    parser = harness.parser(__doc__, output=False)
    parser.add_argument("--only", help="comma-separated names of scripts")
    parser.add_argument("--collect", action="store_true", help="only the tables")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else [*SCRIPTS]
    if unknown := sorted({*names} - {*SCRIPTS}):
        parser.error(
            f"--only={','.join(unknown)}: the scripts are {', '.join(SCRIPTS)}"
        )
    failed = []
    for name in [] if arguments.collect else names:
        print(f"== {name}", file=sys.stderr)
        # In fresh processes, without the threads and caches of earlier peers.
        for flags in [[f"--size={size}"] for size in SCRIPTS[name][1]] or [[]]:
            command = [str(HERE / f"{name}.py"), *flags]
            if subprocess.run([sys.executable, *command], check=False).returncode:
                failed.append(" ".join([name, *flags]))
    collect()
    if failed:
        sys.exit(f"error: these benchmarks failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
