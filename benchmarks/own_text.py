"""What half an hour of pretraining on one's own text is worth.

    python benchmarks/own_text.py --output_dir=runs/own_text --seeds=0,1,2,3,4
    python benchmarks/paired.py --results=runs/own_text/results.jsonl \
        --systems=continued,mini --primary=package,next

The text is the documentation of the installed packages, which `mini` has not seen. A
tenth of the modules is for evaluation only. `continued` starts from `mini`, `random`
from random weights and with the smaller generator of configs/mini.cfg; discriminator,
vocabulary, steps and data order are equal. Each encoder is fine-tuned on two tasks:
which of ten packages a paragraph is from, and whether the second of two paragraphs
follows the first. `tfidf` is logistic regression on words and word pairs. Finished runs
are kept. Other seeds may run in a second process once the first has written the text.
"""

import ast
import collections
import hashlib
import itertools
import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import encoder_worth
import harness
import numpy as np
import pandas as pd
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from electra_tf import files
from electra_tf.data import installed

PACKAGES = (
    *("torch", "tensorflow", "sympy", "transformers", "scipy"),
    *("sqlalchemy", "pandas", "networkx", "matplotlib", "sklearn"),
)
# Rows for each package, of training and of evaluation.
ROWS = {"train": 200, "eval": 100}
MINI = harness.ROOT / "electra_tf" / "pretrained" / "mini"
PRETRAIN = (
    "--train_batch_size=64 --max_seq_length=64 --mixed_precision=bfloat16 "
    f"--vocab_file={MINI / 'vocab.txt'} --save_checkpoint_steps=300"
)
SYSTEMS = {
    "continued": "--init_from=mini --learning_rate=8e-4",
    "random": f"--flagfile={harness.ROOT}/configs/mini.cfg",
}
TUNE = (
    f"--task=classification --flagfile={harness.ROOT}/configs/recipes/no_dropout.cfg "
    "--pooling=mean --head_init=probe --max_seq_length=96 --epochs=3 "
    "--mixed_precision=bfloat16 --noexport_saved_model --seeds=2"
)
COLUMNS = {"package": "text", "next": "text,second"}


def docstrings(path):
    """Returns the paragraphs of prose of every docstring of a module."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (
        ast.get_docstring(node)
        for node in ast.walk(tree)
        if isinstance(node, documented)
    )
    return [installed.prose(text) for text in found if text]


def modules():
    """Yields package, whether it is for evaluation, and docstrings of each module."""
    root, seen = Path(sysconfig.get_paths()["purelib"]), set()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if any("test" in part for part in name.parts):
            continue
        texts = []
        for paragraphs in docstrings(path):
            new = [text for text in paragraphs if text.casefold() not in seen]
            seen.update(text.casefold() for text in new)
            texts.append(new)
        digest = hashlib.sha256(name.as_posix().encode()).digest()
        yield name.parts[0], digest[0] < 26, [text for text in texts if text]


def write_text(folder):
    """Writes text.txt, and both tasks as NAME-train.csv and NAME-eval.csv."""
    singles, pairs = collections.defaultdict(list), collections.defaultdict(list)
    documents = []
    for package, evaluates, texts in modules():
        split = "eval" if evaluates else "train"
        if texts and not evaluates:
            documents.append("\n".join(text for one in texts for text in one))
        if package in PACKAGES:
            singles[split, package] += [text for one in texts for text in one]
            pairs[split, package] += [
                pair for one in texts for pair in itertools.pairwise(one)
            ]
    for split, rows in ROWS.items():
        tables = {"package": [], "next": []}
        for package in PACKAGES:
            random = np.random.default_rng(0)
            chosen = random.permutation(singles[split, package])[:rows]
            tables["package"] += [(text, "", package) for text in chosen]
            chosen = random.permutation(pairs[split, package])[:rows]
            true, false = chosen[::2], chosen[1::2]
            tables["next"] += [(first, second, "yes") for first, second in true]
            others = np.roll(false[:, 1], 1)
            tables["next"] += [
                (first, second, "no")
                for (first, _), second in zip(false, others, strict=True)
            ]
        for name, table in tables.items():
            table = pd.DataFrame(table, columns=["text", "second", "label"])
            table.to_csv(folder / f"{name}-{split}.csv", index=False)
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")


def run(command, flags, folder):
    """Runs a command into a folder, with a log beside it."""
    with open(folder.with_suffix(".log"), "a") as log:
        call = [sys.executable, "-m", "electra_tf", command, *flags.split()]
        code = subprocess.run(call, cwd=harness.ROOT, stdout=log, stderr=log).returncode
    # A fine-tuning run also exits with an error if no seed beats the baseline.
    if code and not (folder / "results.json").exists():
        sys.exit(f"error: exit code {code}; see {folder.with_suffix('.log')}")


def pretrained(name, seed, flags, folder):
    """Returns the folder of a finished pretraining run."""
    made = folder / f"{name}-{seed}"
    if not (made / "encoder.keras").exists():
        text = f"--corpus={folder / 'text.txt'} --data_dir={folder}/data-{seed}"
        flags = f"{flags} {PRETRAIN} {text} --model_dir={made} --seed={seed}"
        run("pretrain", flags, made)
    return made


def scores(name, seed, encoder, folder):
    """Yields a row of results.jsonl for each held-out measure and each task."""
    row = {"kind": "probe", "system": name, "seed": seed}
    held_out = files.read_json_lines(encoder / "metrics.jsonl")[-1]
    for measure, unit in ("generator_loss", 1), ("replaceable_auc", 100):
        score = unit * held_out[f"eval_{measure}"]
        yield row | {"probe": measure, "score": score}
    for task, columns in COLUMNS.items():
        made = folder / f"{name}-{seed}-{task}"
        if not (made / "results.json").exists():
            table = folder / task
            flags = f"{TUNE} --train={table}-train.csv --eval={table}-eval.csv "
            flags += f"--text={columns} --label=label --seed={10 * seed}"
            run("finetune", f"{flags} --encoder={encoder} --output_dir={made}", made)
        report = json.loads((made / "results.json").read_text())
        split, metric = report["main_split"], report["main_metric"]
        found = [one["scores"][split][metric] for one in report["seeds"]]
        yield row | {"probe": task, "score": float(np.mean(found)), "scores": found}


def tfidf(task, folder):
    """Returns the accuracy of logistic regression on words and word pairs."""
    columns = COLUMNS[task].split(",")
    train, evaluation = (
        pd.read_csv(folder / f"{task}-{split}.csv", dtype=str, keep_default_na=False)
        for split in ROWS
    )
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    words.fit(train[columns].to_numpy().ravel())
    features, held_out = (
        encoder_worth.lexical(words, [table[column] for column in columns])
        for table in (train, evaluation)
    )
    model = LogisticRegression(C=10, max_iter=2000).fit(features, train.label)
    return 100 * model.score(held_out, evaluation.label)


def main():
    parser = harness.parser(__doc__, output=False)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/own_text"))
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--systems", default="mini,continued,random")
    parser.add_argument("--steps", type=int, default=2400, help="of pretraining")
    given = parser.parse_args()
    folder = given.output_dir.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "text.txt").exists():
        write_text(folder)
        for task in COLUMNS:
            row = {"kind": "probe", "system": "tfidf", "seed": 0, "probe": task}
            row["score"] = tfidf(task, folder)
            print(json.dumps(row), flush=True)
            files.append_json_line(folder / "results.jsonl", row)
    steps = f"--num_train_steps={given.steps} --warmup_steps={given.steps // 10}"
    flags = {name: f"{own} {steps} --eval_steps=600" for name, own in SYSTEMS.items()}
    # One step with a rate of 0: the held-out scores of `mini` as it is.
    flags["mini"] = "--init_from=mini --num_train_steps=1 --warmup_steps=1"
    for seed in map(int, given.seeds.split(",")):
        for name in given.systems.split(","):
            encoder = pretrained(name, seed, flags[name], folder)
            for row in scores(name, seed, encoder, folder):
                print(json.dumps(row), flush=True)
                files.append_json_line(folder / "results.jsonl", row)


if __name__ == "__main__":
    main()
