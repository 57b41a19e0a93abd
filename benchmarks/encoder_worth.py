"""What a pretrained encoder is worth beside the same network from random weights.

    python benchmarks/encoder_worth.py --data=DATA --output_dir=runs/worth
    python benchmarks/encoder_worth.py --data=DATA --output_dir=runs/worth --table

Both columns take their rate from the same grid, by one run on nine tenths of the
training data (QA: on half of them), scored on the last tenth; the evaluation data has
no say in it. With that rate each learns from all training data with --seeds seeds.
Beside them stands the answer that ignores the text (for tags: each word's most
frequent one) and, for sentences, TF-IDF of words and pairs of words with logistic or
ridge regression of scikit-learn. Finished runs are kept, so the same command goes on
where it was stopped.
DATA has the folders glue/, sick/, tagging/ and squad/.

Random weights do not depend on how long an encoder was trained, so their column can be
taken from a file of an earlier call, if the sizes are the same:

    python benchmarks/encoder_worth.py ... --columns=random --output=random.json
    python benchmarks/encoder_worth.py ... --columns=pretrained --known=random.json
"""

import argparse
import csv
import dataclasses
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import harness
import numpy as np
import scipy.sparse
import scipy.stats
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import matthews_corrcoef

from electra_tf.comparison.statistics import paired_difference

ROOT = Path(__file__).parent.parent
COLUMNS = ("pretrained", "random")
RATES = ("2e-4", "6e-4")
# The same for both columns: what suits encoders that were pretrained without dropout.
RECIPE = f"--flagfile={ROOT}/configs/recipes/no_dropout.cfg"
FLAGS = (RECIPE, "--mixed_precision=bfloat16", "--noexport_saved_model")
SENTENCES = ("--pooling=mean",)
PROBED = ("--head_init=probe",)


@dataclasses.dataclass(frozen=True)
class Task:
    """A task, where its data is, and how long to learn.

    Attributes:
        flags: of ``run_finetuning.py``, but for the data.
        train, eval: files under the folder of the data.
        parts: how a file falls into examples: ``lines``, ``blocks`` between empty
            lines, or ``articles`` of SQuAD.
        header: whether the first line names the columns.
        text, label: columns of a sentence task, by number; none for other tasks.
        score: the main score.
        choice: flags of the runs that choose the rate.
    """

    flags: str
    train: str
    eval: str
    score: str
    parts: str = "lines"
    header: bool = True
    text: tuple[int, ...] = ()
    label: int = 0
    choice: str = ""


def _glue(name: str, folder: str, flags: str, **more) -> Task:
    return Task(
        f"--flagfile={ROOT}/configs/tasks/{name}.cfg {flags}",
        f"glue/{folder}/train.tsv",
        f"glue/{folder}/dev.tsv",
        **more,
    )


TASKS = {
    "STS-B": _glue(
        "sts",
        "STS-B",
        "--epochs=3 --nopair_doubling",
        score="Spearman",
        text=(7, 8),
        label=9,
    ),
    "SICK": Task(
        "--task=regression --text=sentence_A,sentence_B --label=relatedness_score "
        "--epochs=4 --max_seq_length=64",
        "sick/SICK_train.txt",
        "sick/SICK_test_annotated.txt",
        score="Spearman",
        text=(1, 2),
        label=3,
    ),
    "POS": Task(
        f"--flagfile={ROOT}/configs/tasks/pos.cfg --epochs=2 --max_seq_length=128 "
        "--unknown_tags=allow",
        "tagging/ud-english-ewt/en_ewt-ud-train.conllu",
        "tagging/ud-english-ewt/en_ewt-ud-test.conllu",
        score="accuracy",
        parts="blocks",
    ),
    "chunking": Task(
        f"--flagfile={ROOT}/configs/tasks/chunking.cfg --epochs=3 --max_seq_length=128",
        "tagging/conll2000/train.txt",
        "tagging/conll2000/test.txt",
        score="F1",
        parts="blocks",
    ),
    "CoLA": _glue(
        "cola",
        "CoLA",
        "--epochs=3 --max_seq_length=64",
        score="Matthews",
        header=False,
        text=(3,),
        label=1,
    ),
    "MRPC": _glue(
        "mrpc",
        "MRPC",
        "--epochs=4 --nopair_doubling",
        score="accuracy",
        text=(3, 4),
        label=0,
    ),
    "WNUT-17": Task(
        f"--flagfile={ROOT}/configs/tasks/ner.cfg --epochs=6",
        "tagging/wnut17/wnut17train.conll",
        "tagging/wnut17/emerging.dev.conll",
        score="F1",
        parts="blocks",
    ),
    "RTE": _glue("rte", "RTE", "--epochs=4", score="accuracy", text=(1, 2), label=3),
    "SST-2": _glue(
        "sst",
        "SST-2",
        "--epochs=1 --max_seq_length=64",
        score="accuracy",
        text=(0,),
        label=1,
    ),
    "QA": Task(
        f"--flagfile={ROOT}/configs/tasks/squad1.cfg --epochs=1 --max_seq_length=128 "
        "--doc_stride=64 --max_query_length=32",
        "squad/squadshifts-amazon_reviews_v1.0.json,squad/squadshifts-reddit_v1.0.json",
        "squad/dev-v1.1.rebuilt.json",
        score="F1",
        parts="articles",
        # Its runs are the longest: half of the questions are to tell two rates apart.
        choice="--train_fraction=0.5",
    ),
}


def _parts(task: Task, paths: list[Path]) -> tuple[str, list]:
    """What a file begins with, and its examples."""
    if task.parts == "articles":
        articles = [json.loads(path.read_text())["data"] for path in paths]
        return "", [one for data in articles for one in data]
    (text,) = (path.read_text(encoding="utf-8") for path in paths)
    if task.parts == "blocks":
        return "", [block for block in text.split("\n\n") if block.strip()]
    lines = text.splitlines()
    return (lines[0] + "\n", lines[1:]) if task.header else ("", lines)


def _write(path: Path, task: Task, head: str, parts: list) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if task.parts == "articles":
        text = json.dumps({"version": "1.1", "data": parts})
    else:
        between = "\n\n" if task.parts == "blocks" else "\n"
        text = head + between.join(parts) + between
    path.write_text(text, encoding="utf-8")


def split(task: Task, data: Path, folder: Path) -> dict[str, tuple[Path, Path]]:
    """Files to learn from and to be scored on: to choose the rate, and at the end."""
    head, parts = _parts(task, [data / name for name in task.train.split(",")])
    order = list(range(len(parts)))
    random.Random(0).shuffle(order)
    held = set(order[: max(len(parts) // 10, 1)])
    suffix = {"blocks": Path(task.train).suffix, "articles": ".json"}
    ending = suffix.get(task.parts, ".tsv")
    _, last = _parts(task, [data / task.eval])
    written = {
        "choice": (
            [part for at, part in enumerate(parts) if at not in held],
            [part for at, part in enumerate(parts) if at in held],
        ),
        "final": (parts, last),
    }
    found = {}
    for name, sides in written.items():
        paths = [
            folder / "data" / name / f"{side}{ending}" for side in ("train", "dev")
        ]
        for path, side in zip(paths, sides, strict=True):
            _write(path, task, head, side)
        found[name] = tuple(paths)
    return found


def scores(
    folder: Path, task: Task, files: tuple[Path, Path], flags: list[str]
) -> list[float]:
    """Main scores of the seeds of one run, which is not repeated if it is there."""
    results = folder / "results.json"
    if not results.exists():
        given = [f"--train={files[0]}", f"--eval={files[1]}"]
        if "configs/tasks" in task.flags and task.text:
            given = [f"--data_dir={files[0].parent}"]
        command = [sys.executable, str(ROOT / "run_finetuning.py")]
        command += [*task.flags.split(), *FLAGS, *given, *flags]
        command += SENTENCES if task.text else ()
        command += PROBED if task.parts != "articles" else ()
        command += [f"--output_dir={folder}"]
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder.with_suffix(".log"), "w") as log:
            code = subprocess.run(command, stdout=log, stderr=log).returncode
        # A run none of whose seeds beats the trivial answer ends with an error, too.
        if code and not results.exists():
            sys.exit(f"error: exit code {code}; see {folder.with_suffix('.log')}")
    found = json.loads(results.read_text())
    name, metric = found["main_split"], found["main_metric"]
    return [seed["scores"][name][metric] for seed in found["seeds"]]


def baseline(folder: Path) -> float:
    """The score of an answer that does not look at the text."""
    found = json.loads((folder / "results.json").read_text())
    return found["summary"][found["main_split"]][found["main_metric"]]["baseline"]


def _columns(task: Task, path: Path) -> tuple[list[tuple[str, ...]], list[str]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    rows = list(rows)[1 if task.header else 0 :]
    return [tuple(row[n] for n in task.text) for row in rows], [
        row[task.label] for row in rows
    ]


def tfidf(task: Task, files: tuple[Path, Path]) -> float | None:
    """The task's score of TF-IDF and a linear model, None where there are no sentences.

    Two sentences are given as what they share and as how they differ, word by word, and
    as their cosine.
    """
    if not task.text:
        return None
    (texts, labels), (asked, answers) = (_columns(task, path) for path in files)
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    words.fit([one for row in texts for one in row])

    def features(rows):
        sides = [words.transform(column) for column in zip(*rows, strict=True)]
        if len(sides) == 1:
            return sides[0]
        shared = sides[0].multiply(sides[1])
        cosine = scipy.sparse.csr_matrix(shared.sum(1))
        return scipy.sparse.hstack([shared, abs(sides[0] - sides[1]), cosine]).tocsr()

    if task.score == "Spearman":
        model = RidgeCV(alphas=np.logspace(-2, 2, 9))
        model.fit(features(texts), np.array(labels, float))
        guesses = model.predict(features(asked))
        return 100 * scipy.stats.spearmanr(guesses, np.array(answers, float)).statistic
    model = LogisticRegression(C=10, max_iter=2000).fit(features(texts), labels)
    guesses = model.predict(features(asked))
    if task.score == "Matthews":
        return 100 * matthews_corrcoef(answers, guesses)
    return 100 * float(np.mean(guesses == np.array(answers)))


def measure(
    name: str,
    data: Path,
    folder: Path,
    encoder: str,
    seeds: int,
    columns: Sequence[str] = COLUMNS,
) -> dict:
    """Scores of the columns of one task, and what they are to beat."""
    task = TASKS[name]
    files = split(task, data, folder)
    found = {"task": name, "score": task.score}
    for column in columns:
        start = [f"--encoder={encoder}", f"--init={column}"]
        tried = {}
        for rate in RATES:
            flags = [*start, f"--learning_rate={rate}", *task.choice.split()]
            (tried[rate],) = scores(
                folder / f"{column}-{rate}", task, files["choice"], flags
            )
            print(f"{name} {column} {rate}: {tried[rate]:.2f}", file=sys.stderr)
        best = max(tried, key=tried.get)
        flags = [*start, f"--learning_rate={best}", f"--seeds={seeds}"]
        found[column] = scores(folder / column, task, files["final"], flags)
        found[f"{column}_rates"] = tried
        print(f"{name} {column}: {np.mean(found[column]):.2f}", file=sys.stderr)
    found["without_looking"] = baseline(folder / columns[0])
    return found | {"tfidf": tfidf(task, files["final"])}


def table(found: list[dict]) -> str:
    """A row per task; a column that was not measured is empty."""
    lines = [
        "| task | score | pretrained | random | difference | p (t-test) | "
        "without looking | TF-IDF |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        sides = [_spread(row.get(side, [])) for side in COLUMNS]
        gap = ["", ""]
        if all(sides):
            difference = paired_difference(*(row[side] for side in COLUMNS))
            gap = [f"{difference.mean:+.2f}", f"{difference.p_t:.2g}"]
        lexical = "" if row["tfidf"] is None else f"{row['tfidf']:.2f}"
        cells = [row["task"], row["score"], *sides, *gap]
        cells += [f"{row['without_looking']:.2f}", lexical]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(scores: list[float]) -> str:
    """Mean ± standard deviation; of one score, only that."""
    if not scores:
        return ""
    deviation = f" ± {np.std(scores, ddof=1):.2f}" if len(scores) > 1 else ""
    return f"{np.mean(scores):.2f}{deviation}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of the data")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/worth"))
    parser.add_argument("--encoder", default="mini", help="as of run_finetuning.py")
    parser.add_argument("--tasks", default=",".join(TASKS), help="some of them")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--columns", default=",".join(COLUMNS), help="one of them")
    parser.add_argument("--known", type=Path, help="file of --output, of other columns")
    parser.add_argument("--table", action="store_true", help="of finished tasks, only")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    given = parser.parse_args()
    columns = tuple(given.columns.split(","))
    known = json.loads(given.known.read_text())["tasks"] if given.known else []
    known = {row["task"]: row for row in known}
    found = []
    for name in given.tasks.split(","):
        folder = given.output_dir / name
        kept = folder / f"worth-{'-'.join(columns)}.json"
        if not kept.exists() and not given.table:
            asked = (given.data, folder, given.encoder, given.seeds, columns)
            row = measure(name, *asked)
            kept.write_text(json.dumps(row, indent=1) + "\n")
        rows = [known[name]] if name in known else []
        rows += [json.loads(kept.read_text())] if kept.exists() else []
        if rows:
            found.append({key: row[key] for row in rows for key in row})
    print(table(found))
    if given.output:
        result = {"hardware": harness.hardware(), "tasks": found}
        given.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
