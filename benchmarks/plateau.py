"""Which settings end the plateau of replaced token detection soonest.

    python benchmarks/grammar.py --output_dir=runs/grammar
    python benchmarks/plateau.py --language=grammar --data=runs/grammar
    python benchmarks/plateau.py --language=text --data=FILE --settings=paper,together

Each setting is a pretraining run that differs from "paper" (the original's settings on
a small network) in the flags of its name, with a constant rate after the warm-up, so
that a point of a curve does not depend on how long the run was to be. Every few steps
the discriminator is asked about held-out text in which 15 % of the words were drawn
anew from the frequencies of words: the same question to all, whatever generator each
was trained with. The plateau has ended where the area under its ROC curve (AUC, over
tokens that can be replaced) first reaches --ends_at. Finished runs are kept, so the
same command goes on where it was stopped; the picture goes to docs/images.
"""

import argparse
import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import harness
import numpy as np
import scipy.stats

ROOT = Path(__file__).parent.parent
CORRUPTED, ROWS = 0.15, 64


@dataclasses.dataclass(frozen=True)
class Language:
    """What is learned from, and the network it is learned with.

    Attributes:
        corpus: flags that name it, with {data} for --data.
        flags: those of "paper" in this language.
        ends_at: the AUC at which the plateau has ended.
        positions: how long a run is.
        length, rows: of a batch, unless a setting says otherwise.
        width: of the discriminator.
        every: positions between two questions.
    """

    corpus: str
    flags: str
    ends_at: float
    positions: int
    length: int
    rows: int
    width: int
    every: int


# The original's settings, but for sizes and dropout, which no small network here needs.
PAPER = (
    "--embedding_size=128 --position_init=truncated_normal --initializer_range=0.02 "
    "--mask_rate=0.15 --generator_hidden_size=0.25 --generator_layers=1.0 "
    "--learning_rate=5e-4 --noadam_bias_correction --adam_epsilon=1e-6"
)
LANGUAGES = {
    "grammar": Language(
        "--corpus={data}/text.txt --vocab_file={data}/vocab.txt",
        f"--flagfile={ROOT}/configs/grammar.cfg --num_heads=2 {PAPER}",
        ends_at=0.75,
        positions=4_096_000,
        length=32,
        rows=128,
        width=128,
        every=81_920,
    ),
    "text": Language(
        "--corpus={data} --vocab_size=8192",
        f"--flagfile={ROOT}/configs/tiny.cfg --num_heads=4 {PAPER}",
        ends_at=0.75,
        positions=8_192_000,
        length=64,
        rows=64,
        width=256,
        every=204_800,
    ),
}
STARTS = ("paper", "range 0.05", "range 0.09", "range 0.09 and sinusoidal")
WARM_UP = 0.1  # Of a whole run.


@dataclasses.dataclass(frozen=True)
class Leg:
    """A part of a run: its share of the positions, and its flags."""

    share: float
    flags: str


_RANGE, _HEADS = "--initializer_range=0.09", "--num_heads={heads_of_32}"
_SINUSOIDAL, _MASK = "--position_init=sinusoidal", "--mask_rate=0.25"
_BIAS = "--adam_bias_correction"
_TOGETHER = (_RANGE, _SINUSOIDAL, _HEADS, _MASK, _BIAS)


def _without(flag: str) -> str:
    return " ".join(other for other in _TOGETHER if other != flag)


_ONE_LEG = {
    "paper": "",
    "range 0.05": "--initializer_range=0.05",
    "range 0.09": _RANGE,
    "sinusoidal": _SINUSOIDAL,
    "range 0.09 and sinusoidal": f"{_RANGE} {_SINUSOIDAL}",
    "heads of 32": _HEADS,
    "mask 0.25": _MASK,
    "mask 0.40": "--mask_rate=0.40",
    "mask 0.40 to 0.15": "--mask_rate=0.40 --final_mask_rate=0.15 "
    "--mask_rate_steps=STEPS",
    "generator 1/8": "--generator_hidden_size=0.125",
    "generator 1/2": "--generator_hidden_size=0.5",
    "generator of frequencies": "--generator=unigram",
    "rate 2.5e-4": "--learning_rate=2.5e-4",
    "rate 1e-3": "--learning_rate=1e-3",
    "slow generator": "--generator_learning_rate=1.25e-4",
    "fast generator": "--generator_learning_rate=2e-3",
    "temperature 2": "--temperature=2.0",
    "temperature 2 to 1": "--temperature=2.0 --final_temperature=1.0 "
    "--temperature_steps=STEPS",
    "bias correction": _BIAS,
    "epsilon 1e-8": "--adam_epsilon=1e-8",
    "dropout 0.1": "--dropout=0.1 --attention_dropout=0.1",
    "gdes": "--sharing=gdes",
    "BERT's 85 % rule": "--mask_rule=bert",
    "half the batch": "--train_batch_size={half_rows}",
    "together": " ".join(_TOGETHER),
    "together but range 0.02": _without(_RANGE),
    "together but random positions": _without(_SINUSOIDAL),
    "together but heads of 64": _without(_HEADS),
    "together but mask 0.15": _without(_MASK),
    "together but no bias correction": _without(_BIAS),
}
SETTINGS = {name: (Leg(1.0, flags),) for name, flags in _ONE_LEG.items()} | {
    "masked LM first": (Leg(0.25, "--objective=mlm"), Leg(0.75, "")),
    "half the length first": (
        Leg(0.25, "--max_seq_length={half_length} --train_batch_size={twice_rows}"),
        Leg(0.75, ""),
    ),
    "half the batch first": (
        Leg(0.25, "--train_batch_size={half_rows}"),
        Leg(0.75, ""),
    ),
}


def flags_of(language: Language, setting: str, data: str, folder: Path) -> list[list]:
    """The command lines of a setting's legs."""
    found: list[list] = []
    seed = folder.name[folder.name.rindex("-") :]
    for number, leg in enumerate(SETTINGS[setting]):
        sizes = {"max_seq_length": language.length, "train_batch_size": language.rows}
        fill = {
            "half_length": language.length // 2,
            "half_rows": language.rows // 2,
            "twice_rows": language.rows * 2,
            "heads_of_32": language.width // 32,
            "heads_of_16": language.width // 16,
        }
        own = [flag.split("=") for flag in leg.flags.format(**fill).split()]
        sizes |= {flag[0][2:]: int(flag[1]) for flag in own if flag[0][2:] in sizes}
        length, rows = sizes.values()
        steps = round(language.positions * leg.share / (length * rows))
        # The rate has to rise again, less long, where weights are already there.
        warm = steps * WARM_UP / leg.share * (0.25 if number else 1)
        flags = [
            *language.flags.split(),
            *language.corpus.format(data=data).split(),
            *("=".join(flag).replace("STEPS", str(steps)) for flag in own),
            f"--max_seq_length={length}",
            f"--train_batch_size={rows}",
            f"--data_dir={folder.parent / f'records-{length}{seed}'}",
            f"--num_train_steps={steps}",
            f"--warmup_steps={round(warm)}",
            *("--lr_decay_power=0", "--eval_steps=0"),
            f"--model_dir={folder / str(number)}",
        ]
        if number:
            flags.append(f"--init_from={folder / str(number - 1)}")
        found.append(flags)
    return found


def questions(
    held_out, special: tuple[int, ...], sep_id: int
) -> tuple[dict, np.ndarray]:
    """Held-out text with words drawn anew, and labels: 1 replaced, 0 not, -1 none."""
    import tensorflow as tf

    from electra_tf.features import derive_inputs

    batches = list(held_out.take(16))
    ids = np.concatenate([batch["input_ids"].numpy() for batch in batches])[:1024]
    mask = np.concatenate([batch["input_mask"].numpy() for batch in batches])[:1024]
    words = (mask == 1) & ~np.isin(ids, special)
    rng = np.random.default_rng(0)
    anew = words & (rng.random(ids.shape) < CORRUPTED)
    drawn = np.where(anew, rng.choice(ids[words], ids.shape), ids)
    labels = np.where(words, drawn != ids, -1)
    inputs = derive_inputs(
        tf.constant(drawn, tf.int32), tf.constant(mask, tf.int32), sep_id
    )
    return inputs, labels


def texts_of(batch: dict) -> list[np.ndarray]:
    """Ids of the first rows, without padding."""
    lengths = batch["input_mask"].numpy()[:16].sum(axis=1)
    rows = batch["input_ids"].numpy()
    return [row[:length] for row, length in zip(rows, lengths, strict=False)]


def auc(truth: np.ndarray, scores: np.ndarray) -> float:
    """Area under the ROC curve, as the Mann-Whitney statistic."""
    test = scipy.stats.mannwhitneyu(scores[truth], scores[~truth])
    return float(test.statistic / (truth.sum() * (~truth).sum()))


def train(flags: list[str], curve: Path, every: int) -> None:
    """In a process of its own: one leg, its points appended to ``curve``."""
    sys.path.insert(0, str(ROOT))
    from electra_tf.config import startup

    startup.quiet()
    startup.keep_compiled_code()
    import keras
    import tensorflow as tf

    from electra_tf import cli
    from electra_tf.analysis.attention import attention
    from electra_tf.config.pretraining import PretrainConfig
    from electra_tf.runs import pretraining
    from electra_tf.systems import build, costs

    tf.config.threading.set_intra_op_parallelism_threads(1)
    config = cli.parse(PretrainConfig, flags)
    run = pretraining.prepare(config)
    per_step = config.run.train_batch_size * config.data.max_seq_length
    vocabulary = run.data.vocabulary
    price = costs.run_flops(config, len(vocabulary)) / config.run.num_train_steps
    points = []

    class Asked(keras.callbacks.Callback):
        """Asks the discriminator after every so many positions."""

        def __init__(self, first_step: int):
            super().__init__()
            self.step = first_step
            special = build.special_ids(vocabulary)
            batch, self.labels = questions(run.held_out, special, vocabulary.sep_id)
            self.batches = list(tf.data.Dataset.from_tensor_slices(batch).batch(ROWS))
            self.ask = None
            self.texts = texts_of(batch)
            # Of attention that is the same everywhere, by the words that look.
            lengths = np.array([len(row) for row in self.texts])
            self.uniform = np.average(np.log(lengths), weights=lengths - 2)

        def on_train_batch_end(self, batch, logs=None):
            self.step += 1
            if self.step % max(1, every // per_step):
                return
            if self.ask is None:
                judge = self.model.objective.as_model(self.model.discriminator)
                self.ask = tf.function(lambda inputs: judge(inputs, training=False))
            logits = np.concatenate([self.ask(part).numpy() for part in self.batches])
            asked = self.labels >= 0
            found = auc(self.labels[asked] == 1, logits[asked])
            encoder = self.model.discriminator.standalone()
            entropy = attention(
                encoder, self.texts, vocabulary.sep_id, vocabulary.cls_id
            )
            sharpest = self.uniform - entropy.entropy.min()
            points.append((self.step * per_step, self.step * price, found, sharpest))

    detects = config.objective.objective == "electra"
    with run.lock, run.data.naming_damage():
        asked = (lambda step: [Asked(step)]) if detects else (lambda step: [])
        if pretraining.train(run, asked):
            sys.exit("stopped")
        pretraining.finish(run)
    steps = config.run.num_train_steps
    leg = {"positions": steps * per_step, "flops": steps * price, "points": points}
    curve.write_text(json.dumps(leg))


def at_the_start(flags: list[str]) -> None:
    """Prints what a first step sees when words are replaced by their frequency.

    Standard deviation of the scores of attention over the tokens of a row, and the root
    mean square of the discriminator's gradients, by kernel.
    """
    sys.path.insert(0, str(ROOT))
    from electra_tf.config import startup

    startup.quiet()
    import tensorflow as tf

    from electra_tf import cli
    from electra_tf.analysis.attention import looking
    from electra_tf.config.pretraining import PretrainConfig
    from electra_tf.runs import pretraining

    run = pretraining.prepare(cli.parse(PretrainConfig, flags))
    model, sep_id = run.model, run.data.vocabulary.sep_id
    batch = next(iter(run.train_batches()))
    look = looking(model.discriminator.standalone(), sep_id)
    shares = [look(row) for row in texts_of(batch)]
    found = {"scores": np.mean([np.log(share).std(-1).mean() for share in shares])}
    with run.lock, tf.GradientTape() as tape:
        totals = model.loss_totals(batch)
        losses = model.compute_losses(
            batch, totals, seed=tf.constant([0, 0, 0]), training=True
        )
        loss = tf.add_n(losses)
    block = model.discriminator.transformer.blocks[0]
    kernels = [block.qkv_kernel, block.intermediate_kernel]
    attending, feeding = tape.gradient(loss, kernels)
    width = attending.shape[0]
    parts = {"query and key": attending[:, : 2 * width], "feed-forward": feeding}
    for name, part in parts.items():
        found[name] = np.sqrt(np.mean(part.numpy() ** 2))
    print(json.dumps({name: float(value) for name, value in found.items()}))


def start_table(language: Language, data: str, folder: Path) -> str:
    """``at_the_start`` of some settings, as Markdown."""
    lines = [
        "| setting | attention scores | gradient of query and key | of feed-forward |",
        "|---|---|---|---|",
    ]
    for setting in STARTS:
        (flags,) = flags_of(language, setting, data, folder / "start-0")
        command = [sys.executable, __file__, "--start-of", *flags]
        command += ["--generator=unigram"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        cells = " | ".join(f"{value:.2g}" for value in found.values())
        lines.append(f"| {setting} | {cells} |")
    return "\n".join(lines)


def curve_of(language: Language, setting: str, data: str, folder: Path) -> np.ndarray:
    """A run's points, [n, 4], counted over all its legs.

    Positions, FLOPs, AUC, and the nats by which the attention of the sharpest head is
    below the same share for every token.
    """
    points, before = [], np.zeros(4)
    for number, flags in enumerate(flags_of(language, setting, data, folder)):
        kept = folder / f"{number}.json"
        if not kept.exists():
            print(f"{folder.name}, leg {number + 1}", file=sys.stderr)
            folder.mkdir(parents=True, exist_ok=True)
            # Points of a leg that was stopped are lost, so it begins again.
            shutil.rmtree(folder / str(number), ignore_errors=True)
            command = [sys.executable, __file__, "--leg", str(kept)]
            command += [str(language.every), *flags]
            with open(folder / f"{number}.log", "w") as log:
                code = subprocess.run(command, stdout=log, stderr=log).returncode
            if code:
                sys.exit(f"error: exit code {code}; see {log.name}")
        leg = json.loads(kept.read_text())
        points += [before + point for point in leg["points"]]
        before += (leg["positions"], leg["flops"], 0, 0)
    return np.array(points)


def ending(curve: np.ndarray, ends_at: float) -> tuple[float, float] | None:
    """Positions and FLOPs at which the AUC first reaches a value, between two points.

    None if it never does.
    """
    above = np.flatnonzero(curve[:, 2] >= ends_at)
    if not above.size:
        return None
    at = above[0]
    if not at:
        return tuple(curve[0, :2])
    low, high = curve[at - 1], curve[at]
    part = (ends_at - low[2]) / (high[2] - low[2])
    return tuple((low + part * (high - low))[:2])


def rows_of(curves: dict[str, list[np.ndarray]], ends_at: float) -> list[dict]:
    """A row per setting, the soonest first."""
    found = []
    for setting, seeds in curves.items():
        ends = [ending(curve, ends_at) for curve in seeds]
        ended = all(ends)
        found.append(
            {
                "setting": setting,
                "flags": " then ".join(leg.flags for leg in SETTINGS[setting]),
                "seeds": len(seeds),
                "positions": [end and end[0] for end in ends],
                "flops": [end and end[1] for end in ends],
                "auc": [float(curve[-1, 2]) for curve in seeds],
                "mean": float(np.mean([end[0] for end in ends])) if ended else None,
            }
        )
    return sorted(found, key=lambda row: (row["mean"] or np.inf, -np.mean(row["auc"])))


def table(rows: list[dict]) -> str:
    """Where each setting's plateau ended, as Markdown."""

    def cell(values: list, unit: float) -> str:
        if None in values:
            never = f"{values.count(None)} of {len(values)} " if len(values) > 1 else ""
            return f"{never}never"
        spread = f" ± {np.std(values, ddof=1) / unit:.2f}" if len(values) > 1 else ""
        return f"{np.mean(values) / unit:.2f}{spread}"

    lines = [
        "| setting | million positions | 1e12 FLOPs | AUC at the end |",
        "|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['setting']} | {cell(row['positions'], 1e6)} | "
            f"{cell(row['flops'], 1e12)} | {cell(row['auc'], 1)} |"
        )
    return "\n".join(lines)


def picture(curves: dict[str, list[np.ndarray]], ends_at: float, path: Path) -> None:
    """The curves, AUC over positions; first, last and "paper" have a color."""
    import matplotlib.figure

    order = [row["setting"] for row in rows_of(curves, ends_at)]
    shown = {*order[:4], *order[-3:], "paper"}
    named = [setting for setting in order if setting in shown]
    figure = matplotlib.figure.Figure(figsize=(8, 4.5), layout="constrained")
    axis = figure.subplots()
    for setting in order:
        color = f"C{named.index(setting)}" if setting in shown else "0.85"
        for number, curve in enumerate(curves[setting]):
            axis.plot(
                curve[:, 0] / 1e6,
                curve[:, 2],
                color=color,
                linewidth=1.4,
                zorder=2 if setting in shown else 1,
                label=setting if setting in shown and not number else None,
            )
    axis.axhline(ends_at, color="0.4", linewidth=0.8, linestyle=":")
    axis.set_xlabel("million positions")
    axis.set_ylabel("AUC at words drawn anew")
    axis.grid(alpha=0.25)
    figure.legend(loc="outside right upper", fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    if sys.argv[1:2] == ["--leg"]:
        kept, every, *flags = sys.argv[2:]
        train(flags, Path(kept), int(every))
        return
    if sys.argv[1:2] == ["--start-of"]:
        at_the_start(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--language", choices=LANGUAGES, default="grammar")
    parser.add_argument("--data", required=True, help="folder, or file of text")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/plateau"))
    parser.add_argument("--settings", default=",".join(SETTINGS), help="some of them")
    parser.add_argument("--seeds", default="0", help="such as 0,1,2")
    parser.add_argument("--positions", type=int, help="of a run")
    parser.add_argument("--start", action="store_true", help="of training, only")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    given = parser.parse_args()
    language = LANGUAGES[given.language]
    if given.positions:
        language = dataclasses.replace(language, positions=given.positions)
    if given.start:
        folder = given.output_dir / given.language
        print(start_table(language, given.data, folder))
        return
    curves: dict[str, list[np.ndarray]] = {}
    for seed in given.seeds.split(","):
        seeded = dataclasses.replace(language, flags=f"{language.flags} --seed={seed}")
        for setting in given.settings.split(","):
            name = f"{setting.replace(' ', '_').replace('/', 'of')}-{seed}"
            folder = given.output_dir / given.language / name
            curve = curve_of(seeded, setting, given.data, folder)
            curves.setdefault(setting, []).append(curve)
    rows = rows_of(curves, language.ends_at)
    print(table(rows))
    image = ROOT / "docs" / "images" / f"plateau-{given.language}.png"
    picture(curves, language.ends_at, image)
    output = given.output or harness.RESULTS / f"plateau-{given.language}.json"
    result = {"hardware": harness.hardware(), "ends_at": language.ends_at, "rows": rows}
    output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
