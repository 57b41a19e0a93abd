"""Scores of a pretrained encoder, of random weights and of simple baselines.

    python benchmarks/encoder_worth.py --data=DATA --output_dir=runs/worth
    python benchmarks/encoder_worth.py --data=DATA --tasks=POS,CoLA --seeds=3

Both columns choose the learning rate from the same grid on held-out training data
(--search of run_finetuning.py), not on evaluation data. Then each trains on all
training data with --seeds seeds. Other columns are the majority baseline and, for
sentences, TF-IDF of words and word pairs with logistic or ridge regression. Finished
runs are kept. DATA has the folders glue/, sick/, tagging/ and squad/.
"""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import harness
import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse
import scipy.stats
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import accuracy_score, matthews_corrcoef

from electra_tf.comparison.statistics import paired_difference

COLUMNS = ("pretrained", "random")
# The same for both columns: suits encoders that were pretrained without dropout.
FLAGS = (
    f"--flagfile={harness.ROOT}/configs/recipes/no_dropout.cfg "
    "--mixed_precision=bfloat16 --noexport_saved_model "
    "--search=learning_rate=2e-4/6e-4 --search_trials=2"
)


class Task(NamedTuple):
    """Flags of run_finetuning.py, score, files and columns.

    In the flags {d} is the folder of the data, {o} that of the output.

    ``text`` and ``label`` are the columns of a sentence task, by number.
    """

    flags: str
    score: str
    files: tuple[str, str] = ("", "")
    text: tuple[int, ...] = ()
    label: int = 0
    header: int | None = 0


def glue(name, folder, flags, score, text, label, header=0):
    files = f"glue/{folder}/train.tsv", f"glue/{folder}/dev.tsv"
    shared = f"{harness.ROOT}/configs/tasks/{name}.cfg --data_dir={{d}}/glue/{folder}"
    flags = f"--flagfile={shared} {flags} --pooling=mean --head_init=probe"
    return Task(flags, score, files, text, label, header)


def tags(name, folder, train, dev, flags, score):
    folder = f"{{d}}/tagging/{folder}"
    shared = f"--flagfile={harness.ROOT}/configs/tasks/{name}.cfg --head_init=probe"
    files = f"--train={folder}/{train} --eval={folder}/{dev}"
    return Task(f"{shared} {files} {flags}", score)


SICK = "sick/train.tsv", "sick/test.tsv"
EWT = "ud-english-ewt", "en_ewt-ud-train.conllu", "en_ewt-ud-test.conllu"
SHIFTS = ("squadshifts-amazon_reviews_v1.0.json", "squadshifts-reddit_v1.0.json")
TASKS = {
    "STS-B": glue(
        "sts", "STS-B", "--epochs=3 --nopair_doubling", "Spearman", (7, 8), 9
    ),
    "SICK": Task(
        f"--task=regression --train={{d}}/{SICK[0]} --eval={{d}}/{SICK[1]} --epochs=4 "
        "--text=sentence_A,sentence_B --label=relatedness_score --max_seq_length=64 "
        "--pooling=mean --head_init=probe",
        "Spearman",
        SICK,
        (1, 2),
        3,
    ),
    "POS": tags("pos", *EWT, "--epochs=2 --max_seq_length=128", "accuracy"),
    "chunking": tags(
        *("chunking", "conll2000", "train.txt", "test.txt"),
        *("--epochs=3 --max_seq_length=128", "F1"),
    ),
    "CoLA": glue(
        *("cola", "CoLA", "--epochs=3 --max_seq_length=64", "Matthews", (3,), 1, None)
    ),
    "MRPC": glue(
        *("mrpc", "MRPC", "--epochs=4 --nopair_doubling", "accuracy", (3, 4), 0)
    ),
    "WNUT-17": tags(
        *("ner", "wnut17", "wnut17train.conll", "emerging.dev.conll"),
        *("--epochs=6", "F1"),
    ),
    "RTE": glue("rte", "RTE", "--epochs=4", "accuracy", (1, 2), 3),
    "SST-2": glue(
        *("sst", "SST-2", "--epochs=1 --max_seq_length=64", "accuracy", (0,), 1)
    ),
    "QA": Task(
        f"--flagfile={harness.ROOT}/configs/tasks/squad1.cfg "
        "--train={o}/squadshifts.json --eval={d}/squad/dev-v1.1.rebuilt.json "
        "--epochs=1 --max_seq_length=128 --doc_stride=64 --max_query_length=32",
        "F1",
    ),
}


def join_shifts(data, output_dir):
    """Writes the articles of both training files of QA to one."""
    parts = [json.loads((data / "squad" / name).read_text()) for name in SHIFTS]
    articles = [article for part in parts for article in part["data"]]
    output_dir.mkdir(parents=True, exist_ok=True)
    joined = json.dumps({"version": "1.0", "data": articles})
    (output_dir / "squadshifts.json").write_text(joined)


def scores(folder, task, data, flags):
    """Returns the main scores of the seeds and of the baseline; keeps the run."""
    results = folder / "results.json"
    if not results.exists():
        command = [sys.executable, str(harness.ROOT / "run_finetuning.py")]
        own = task.flags.format(d=data, o=folder.parents[1])
        command += [*FLAGS.split(), *own.split(), *flags]
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder.with_suffix(".log"), "w") as log:
            command += [f"--output_dir={folder}"]
            code = subprocess.run(command, stdout=log, stderr=log).returncode
        # A run also exits with an error if no seed beats the baseline.
        if code and not results.exists():
            sys.exit(f"error: exit code {code}; see {folder.with_suffix('.log')}")
    report = json.loads(results.read_text())
    split, metric = report["main_split"], report["main_metric"]
    baseline = report["summary"][split][metric]["baseline"]
    return [seed["scores"][split][metric] for seed in report["seeds"]], baseline


def lexical(words, columns):
    """Returns TF-IDF features of texts, one column, or of pairs, two.

    The features of a pair are the product, the difference and the cosine.
    """
    sides = [words.transform(column) for column in columns]
    if len(sides) == 1:
        return sides[0]
    shared = sides[0].multiply(sides[1])
    cosine = scipy.sparse.csr_matrix(shared.sum(1))
    return scipy.sparse.hstack([shared, abs(sides[0] - sides[1]), cosine]).tocsr()


def tfidf(task, data):
    """Returns the score of TF-IDF and a linear model; None without sentences."""
    if not task.text:
        return None
    options = {"header": task.header, "dtype": str}
    train, test = (harness.read_tsv(data / path, **options) for path in task.files)
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    words.fit(train.iloc[:, list(task.text)].to_numpy().ravel())
    labels, answers = (table.iloc[:, task.label] for table in (train, test))

    def features(table):
        return lexical(words, [table.iloc[:, column] for column in task.text])

    if task.score == "Spearman":
        model = RidgeCV(alphas=np.logspace(-2, 2, 9))
        model.fit(features(train), labels.astype(float))
        guesses = model.predict(features(test))
        return 100 * scipy.stats.spearmanr(guesses, answers.astype(float)).statistic
    model = LogisticRegression(C=10, max_iter=2000).fit(features(train), labels)
    metric = matthews_corrcoef if task.score == "Matthews" else accuracy_score
    return 100 * float(metric(answers, model.predict(features(test))))


def spread(values):
    deviation = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{deviation}"


def picture(path, tasks):
    """Draws the scores of `mini` and of the three baselines, a row per task."""
    # Marks and names of the columns. Hollow marks: scores that are level stay visible.
    hollow = {"fillstyle": "none", "markeredgewidth": 1.5}
    columns = {
        "pretrained": {"marker": "o", "label": "mini"},
        "random": {"marker": "x", "label": "random weights", **hollow},
        "tfidf": {"marker": "s", "label": "TF-IDF", **hollow},
        "baseline": {"marker": "|", "label": "majority", **hollow},
    }
    figure, axes = plt.subplots(figsize=(7.5, 4), layout="constrained")
    rows = range(len(tasks))
    for column, look in columns.items():
        given = [task[column] for task in tasks]
        values = [math.nan if x is None else np.mean(x) for x in given]
        axes.plot(values, rows, linestyle="none", markersize=7, **look)
    axes.set_yticks(rows, [f"{task['task']} ({task['score']})" for task in tasks])
    axes.set(xlim=(-2, 100), xlabel="score in %, mean of the seeds; right is better")
    axes.invert_yaxis()
    axes.grid(alpha=0.3)
    title = f"Scores after fine-tuning on {len(tasks)} tasks"
    figure.legend(loc="outside upper center", ncols=4, frameon=False, title=title)
    figure.savefig(path, dpi=130)


def main():
    parser = harness.parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/worth"))
    parser.add_argument("--encoder", default="mini", help="as of run_finetuning.py")
    parser.add_argument("--tasks", default=",".join(TASKS), help="some of them")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--picture", type=Path, help="picture to write")
    given = parser.parse_args()
    found = []
    print("| task | score | pretrained | random | difference | p | majority | TF-IDF |")
    print("|---|---|---|---|---|---|---|---|")
    for name in given.tasks.split(","):
        task, row = TASKS[name], {"task": name, "score": TASKS[name].score}
        if name == "QA":
            join_shifts(given.data, given.output_dir)
        for column in COLUMNS:
            flags = [f"--encoder={given.encoder}", f"--init={column}"]
            flags.append(f"--seeds={given.seeds}")
            folder = given.output_dir / name / column
            row[column], row["baseline"] = scores(folder, task, given.data, flags)
        row["tfidf"] = tfidf(task, given.data)
        gap = paired_difference(*(row[column] for column in COLUMNS))
        lexical = "" if row["tfidf"] is None else f"{row['tfidf']:.2f}"
        cells = [name, task.score, *(spread(row[column]) for column in COLUMNS)]
        cells += [f"{gap.mean:+.2f}", f"{gap.p_t:.2g}", f"{row['baseline']:.2f}"]
        print(f"| {' | '.join([*cells, lexical])} |", flush=True)
        found.append(row)
    if given.output:
        result = {"hardware": harness.hardware(), "tasks": found}
        given.output.write_text(json.dumps(result, indent=1) + "\n")
    if given.picture:
        picture(given.picture, found)


if __name__ == "__main__":
    main()
