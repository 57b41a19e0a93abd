"""Runs the benchmarks one after another and writes docs/performance.md's tables.

    python benchmarks/all.py                        # everything, about half an hour
    python benchmarks/all.py --only=step,serving
    python benchmarks/all.py --collect              # only the tables, from the results

Each script writes its own results/<name>.json. The tables stand between two marks in
docs/performance.md; the text around them is written by hand.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import matplotlib.figure
from harness import RESULTS

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
PICTURE = HERE.parent / "docs" / "images" / "performance.png"
BEGIN = "<!-- written by benchmarks/all.py -->"
END = "<!-- end of what benchmarks/all.py writes -->"
SCRIPTS = {
    "step": [],
    "records": [],
    "finetuning": [],
    "serving": [],
    "startup": [],
    "growth": [],
    "precision": [],
    "encoder_speed": [],
    "optimizer_speed": [],
}


def number(value):
    """Three digits, without an exponent for what people count."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def table(result):
    """The rows of one script as Markdown."""
    lines = [
        f"### {result['name']}",
        "",
        f"    {result['command']}",
        "",
        "| what | unit | electra_tf | peer | ratio (range over rounds) | bar |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
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


def draw(results):
    """All ratios in one picture: bars, their ranges, and the ratio to reach."""
    rows = [row for result in results for row in result["rows"] if row.get("ratio")]
    figure = matplotlib.figure.Figure(
        figsize=(9, 0.42 * len(rows) + 1.2), layout="constrained"
    )
    axis = figure.subplots()
    for place, row in enumerate(reversed(rows)):
        low, high = row["ratio_range"]
        axis.barh(place, row["ratio"], color="#0B62A4", height=0.6)
        axis.plot([low, high], [place, place], color="black", linewidth=1.2)
        if row.get("bar"):
            axis.plot([row["bar"]] * 2, [place - 0.4, place + 0.4], color="#D1590A")
    axis.axvline(1, color="gray", linewidth=0.8, linestyle="--")
    axis.set_yticks(
        range(len(rows)),
        [f"{row['what']} / {row['peer_name']}" for row in reversed(rows)],
        fontsize=8,
    )
    axis.set_xlabel(
        "times as fast as the peer (black: range over rounds; orange: the bar)"
    )
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURE, dpi=110)


def collect():
    """Writes the tables of all results there are into the page, and the picture."""
    paths = [RESULTS / f"{name}.json" for name in SCRIPTS]
    results = [json.loads(path.read_text()) for path in paths if path.exists()]
    machines = {
        f"{r['hardware']['cores']} cores of {r['hardware']['processor']} "
        f"({', '.join(r['hardware']['vector_units'])}), Python "
        f"{r['hardware']['python']}, "
        + ", ".join(f"{k} {v}" for k, v in r["hardware"]["versions"].items() if v)
        for r in results
    }
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    body = "\n\n".join(
        ["Machine: " + "; ".join(sorted(machines)) + ".", *map(table, results)]
    )
    PAGE.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{after}", encoding="utf-8")
    draw(results)
    print(f"written: {PAGE}, {PICTURE}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="comma-separated names of scripts")
    parser.add_argument("--collect", action="store_true", help="only the tables")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(SCRIPTS)
    unknown = sorted(set(names) - set(SCRIPTS))
    if unknown:
        parser.error(
            f"--only={','.join(unknown)}: the scripts are {', '.join(SCRIPTS)}"
        )
    failed = []
    for name in [] if arguments.collect else names:
        print(f"== {name}", file=sys.stderr)
        # A process each: threads and caches of one peer do not disturb the next script.
        command = [sys.executable, str(HERE / f"{name}.py"), *SCRIPTS[name]]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    collect()
    if failed:
        sys.exit(f"error: these benchmarks failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
