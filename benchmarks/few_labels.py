"""Scores of five methods with 8 and with 64 labeled examples per class.

    python benchmarks/few_labels.py --data=DATA --cells=runs/few_labels.jsonl

DATA has glue/SST-2, glue/CoLA and squad/. The topic table assigns questions of SQuAD
to the three articles with the most; training and test differ in paragraphs. All
methods get the same stratified draws. A spare draw, scored on other training rows,
chooses C on all tables, epochs and learning rate on SST-2. --cells resumes a run.
"""

import functools
import itertools
import json
from pathlib import Path

import harness
import numpy as np
import scipy.stats
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, matthews_corrcoef
from sklearn.pipeline import make_pipeline
from tqdm import tqdm

import electra_tf as et
from electra_tf.comparison.statistics import paired_difference

SHOTS = (8, 64)
RANK, MAX_LENGTH, TOPICS = 8, 48, 3
# Settings: C of a linear model; (epochs, learning rate or None for the recipe's).
GRIDS = {
    "majority": dict.fromkeys(SHOTS, (None,)),
    "TF-IDF": dict.fromkeys(SHOTS, (1, 10, 100)),
    "frozen": dict.fromkeys(SHOTS, (0.01, 0.1, 1, 10)),
    "full": {8: [(10, None), (20, None)], 64: [(3, None), (6, None)]},
    "LoRA": {8: [(20, 3e-3), (20, 1e-2)], 64: [(6, 3e-3), (6, 1e-2)]},
}


def _glue(folder, columns, header):
    paths = (folder / f"{split}.tsv" for split in ("train", "dev"))
    parts = (harness.read_tsv(path, header=header, dtype=object) for path in paths)
    return [part.iloc[:, columns].to_numpy() for part in parts]


def _topics(path):
    """Returns questions and titles, of even and of odd paragraphs."""
    rows = [
        (one["question"], article["title"], number % 2)
        for article in json.loads(path.read_text(encoding="utf-8"))["data"]
        for number, paragraph in enumerate(article["paragraphs"])
        for one in paragraph["qas"]
    ]
    titles, counts = np.unique([row[1] for row in rows], return_counts=True)
    most = set(titles[np.argsort(counts)[-TOPICS:]])
    halves = [[r[:2] for r in rows if r[1] in most and r[2] == n] for n in (0, 1)]
    return [np.array(half, object) for half in halves]


def tables(data, eval_rows):
    """Returns rows (text, label) to draw, to choose settings with and to score."""
    parts = {
        "SST-2": _glue(data / "glue" / "SST-2", [0, 1], 0),
        "CoLA": _glue(data / "glue" / "CoLA", [3, 1], None),
        "topic": _topics(data / "squad" / "dev-v1.1.rebuilt.json"),
    }
    splits = {}
    for name, part in parts.items():
        train, test = (np.random.default_rng(0).permutation(rows) for rows in part)
        spare = min(eval_rows, len(train) // 3)
        splits[name] = train[spare:], train[:spare], test[:eval_rows]
    return splits


def draw(pool, shots, number):
    """Returns ``shots`` rows per class; smaller draws are subsets of larger ones."""
    rows = np.random.default_rng([number, 1]).permutation(pool)
    names = np.unique(rows[:, 1])
    return np.concatenate([rows[rows[:, 1] == name][:shots] for name in names])


@functools.cache
def _model(labels=None, rate=None):
    """Returns ``mini``, with a head for labels and LoRA for a rate; and its state."""
    if not labels:
        return et.load("mini"), []
    options = {"max_seq_length": MAX_LENGTH, "seed": 0, "learning_rate": rate}
    model = et.TextClassifier.from_preset("mini", labels, **options)
    if rate:
        model.enable_lora(RANK)
    model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    return model, [(variable, variable.numpy()) for variable in variables]


@functools.cache
def _vectors(texts):
    return _model()[0].encode(texts)


def predictions(method, setting, train, texts):
    """Trains a method on rows and returns its labels of a list of texts."""
    inputs, labels = train.T.tolist()
    if method == "majority":
        return DummyClassifier().fit(inputs, labels).predict(texts)
    if method in ("full", "LoRA"):
        names, (epochs, rate) = np.unique(labels), setting
        model, state = _model(tuple(names.tolist()), rate)
        # All draws share a model: building and tracing take longer than training.
        for variable, value in state:
            variable.assign(value)
        model.fit(inputs, labels, epochs=epochs, verbose=0)
        return names[model.predict_proba(texts).argmax(axis=1)]
    model = LogisticRegression(C=setting, max_iter=5000)
    if method == "frozen":
        model.fit(_vectors(tuple(inputs)), labels)
        return model.predict(_vectors(tuple(texts)))
    model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), model)
    return model.fit(inputs, labels).predict(texts)


class Cells:
    """Scores by (table, shots, method, setting, draw), kept in a file."""

    def __init__(self, path, splits):
        self.path, self.tables = path, splits
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        self.scores = {json.dumps(key): score for key, score in lines}

    def get(self, *key):
        """Returns a score; computes it if the file lacks it. Draw 0 is the spare."""
        name = json.dumps(key)
        if name not in self.scores:
            task, shots, method, setting, number = key
            pool, spare, test = self.tables[task]
            texts, labels = (test if number else spare).T.tolist()
            guesses = predictions(method, setting, draw(pool, shots, number), texts)
            metric = matthews_corrcoef if task == "CoLA" else accuracy_score
            self.scores[name] = 100 * float(metric(labels, guesses))
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps([key, self.scores[name]]) + "\n")
        return self.scores[name]

    def best(self, method, shots):
        """Returns the setting with the best score on the spare draw."""
        grid = GRIDS[method][shots]
        tasks = ["SST-2"] if method in ("full", "LoRA") else self.tables
        scores = [
            np.mean([self.get(task, shots, method, setting, 0) for task in tasks])
            for setting in grid
        ]
        return grid[np.argmax(scores)]


def main():
    """Scores all cells, and prints and writes the means over the draws."""
    parser = harness.parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data")
    parser.add_argument("--cells", type=Path, default=Path("runs/few_labels.jsonl"))
    parser.add_argument("--methods", nargs="+", default=[*GRIDS], help="with TF-IDF")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--eval_rows", type=int, default=300, help="of each table")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()

    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(given.threads)
    tf.config.threading.set_inter_op_parallelism_threads(given.threads)
    kept = Cells(given.cells, tables(given.data, given.eval_rows))
    draws = range(1, given.draws + 1)
    order = [*itertools.product(draws, given.methods, kept.tables, SHOTS)]
    rows, scores = [], {}
    for number, method, task, shots in tqdm(order, unit="cell"):
        value = kept.get(task, shots, method, kept.best(method, shots), number)
        scores.setdefault((method, task, shots), []).append(value)
    for (method, task, shots), values in scores.items():
        half = scipy.stats.t.ppf(0.975, len(values) - 1) * scipy.stats.sem(values)
        gap = paired_difference(values, scores["TF-IDF", task, shots])
        row = {
            "what": f"{task}, {shots} per class, {method}",
            "unit": "Matthews" if task == "CoLA" else "accuracy",
            "ours": float(np.mean(values)),
            "half_interval": half,
            "ahead_of_tfidf": vars(gap),
            "setting": kept.best(method, shots),
            "draws": values,
        }
        rows.append(row)
        gain = f"{gap.mean:+.2f} to TF-IDF (p {gap.p_t:.2g})"
        print(f"{row['what']:32} ± {half:.2f}, {gain}")
    harness.report("few_labels", rows, given.output)


if __name__ == "__main__":
    main()
