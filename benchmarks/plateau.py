"""Which settings end the plateau of replaced token detection soonest.

    python benchmarks/grammar.py --output_dir=runs/grammar
    python benchmarks/plateau.py --data=runs/grammar --seeds=0,1,2

Each setting is a pretraining run that differs from "paper" (the original's settings on
a small network) in the flags of its name, with a constant learning rate after the
warm-up. Every few steps the discriminator predicts which words of held-out text were
drawn again from the frequencies of words: the same question for every generator. The
plateau has ended where the AUC first reaches 0.75. Finished runs are kept; the picture
goes to docs/images.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import harness
import matplotlib.figure
import numpy as np
from sklearn.metrics import roc_auc_score

ROOT = Path(__file__).parent.parent
CORRUPTED, ROWS, ENDS_AT = 0.15, 64, 0.75
POSITIONS, LENGTH, BATCH, EVERY = 4_096_000, 32, 128, 20
# The original's settings, but for sizes and dropout.
PAPER = (
    f"--flagfile={ROOT}/configs/grammar.cfg --num_heads=2 --embedding_size=128 "
    "--position_init=truncated_normal --initializer_range=0.02 --mask_rate=0.15 "
    "--generator_hidden_size=0.25 --generator_layers=1.0 --learning_rate=5e-4 "
    "--noadam_bias_correction --adam_epsilon=1e-6 --lr_decay_power=0 --eval_steps=0"
)
SETTINGS = {
    "paper": "",
    "range 0.09": "--initializer_range=0.09",
    "sinusoidal": "--position_init=sinusoidal",
    "heads of 32": "--num_heads=4",
    "mask 0.25": "--mask_rate=0.25",
    "mask 0.40": "--mask_rate=0.40",
    "generator 1/8": "--generator_hidden_size=0.125",
    "generator 1/2": "--generator_hidden_size=0.5",
    "generator of frequencies": "--generator=unigram",
    "rate 2.5e-4": "--learning_rate=2.5e-4",
    "rate 1e-3": "--learning_rate=1e-3",
    "slow generator": "--generator_learning_rate=1.25e-4",
    "fast generator": "--generator_learning_rate=2e-3",
    "bias correction": "--adam_bias_correction",
    "gdes": "--sharing=gdes",
    "BERT's 85 % rule": "--mask_rule=bert",
    "together": "--initializer_range=0.09 --position_init=sinusoidal --num_heads=4 "
    "--mask_rate=0.25 --adam_bias_correction",
}


def flags_of(setting, seed, data, folder, positions):
    steps = positions // (LENGTH * BATCH)
    return [
        *PAPER.split(),
        *SETTINGS[setting].split(),
        f"--corpus={data}/text.txt",
        f"--vocab_file={data}/vocab.txt",
        f"--seed={seed}",
        f"--max_seq_length={LENGTH}",
        f"--train_batch_size={BATCH}",
        f"--num_train_steps={steps}",
        f"--warmup_steps={steps // 10}",
        f"--data_dir={folder.parent / f'records-{seed}'}",
        f"--model_dir={folder}",
    ]


def questions(held_out, special, sep_id):
    """Held-out text with words drawn again, and labels: 1, 0, or -1 for no word."""
    import tensorflow as tf

    from electra_tf.features import derive_inputs

    batches = list(held_out.take(16))
    ids, mask = (
        np.concatenate([batch[name].numpy() for batch in batches])[:1024]
        for name in ("input_ids", "input_mask")
    )
    words = (mask == 1) & ~np.isin(ids, special)
    rng = np.random.default_rng(0)
    is_drawn = words & (rng.random(ids.shape) < CORRUPTED)
    drawn = np.where(is_drawn, rng.choice(ids[words], ids.shape), ids)
    inputs = derive_inputs(
        tf.constant(drawn, tf.int32), tf.constant(mask, tf.int32), sep_id
    )
    return inputs, np.where(words, drawn != ids, -1)


def train(flags, curve):
    """In a process of its own: trains, and writes positions and AUC to ``curve``."""
    import keras
    import tensorflow as tf

    from electra_tf import cli
    from electra_tf.config.pretraining import PretrainConfig
    from electra_tf.runs import pretraining
    from electra_tf.systems import build

    tf.config.threading.set_intra_op_parallelism_threads(1)
    run = pretraining.prepare(cli.parse(PretrainConfig, flags))
    vocabulary = run.data.vocabulary
    special = build.special_ids(vocabulary)
    batch, labels = questions(run.held_out, special, vocabulary.sep_id)
    batches = list(tf.data.Dataset.from_tensor_slices(batch).batch(ROWS))
    points = []

    class Measure(keras.callbacks.Callback):
        def __init__(self, first_step):
            super().__init__()
            self.step, self.predict = first_step, None

        def on_train_batch_end(self, batch, logs=None):
            self.step += 1
            if self.step % EVERY:
                return
            if self.predict is None:
                model = self.model.objective.as_model(self.model.discriminator)
                self.predict = tf.function(lambda x: model(x, training=False))
            logits = np.concatenate([self.predict(part).numpy() for part in batches])
            real = labels >= 0
            auc = roc_auc_score(labels[real] == 1, logits[real])
            points.append((self.step * LENGTH * BATCH, float(auc)))

    with run.lock, run.data.naming_damage():
        if pretraining.train(run, lambda step: [Measure(step)]):
            sys.exit("stopped")
        pretraining.finish(run)
    curve.write_text(json.dumps(points))


def curve_of(setting, seed, data, folder, positions):
    """The AUC of a run over positions, [n, 2]; trains it if it is not there."""
    kept = folder.with_suffix(".json")
    if not kept.exists():
        print(folder.name, file=sys.stderr)
        folder.parent.mkdir(parents=True, exist_ok=True)
        flags = flags_of(setting, seed, data, folder, positions)
        command = [sys.executable, __file__, "--train", str(kept), *flags]
        with open(folder.with_suffix(".log"), "w") as log:
            code = subprocess.run(command, stdout=log, stderr=log).returncode
        if code:
            sys.exit(f"error: exit code {code}; see {log.name}")
    return np.array(json.loads(kept.read_text()))


def ending(curve):
    """Positions at which the AUC first reaches the threshold, or None."""
    above = np.flatnonzero(curve[:, 1] >= ENDS_AT)
    if not above.size:
        return None
    if not above[0]:
        return float(curve[0, 0])
    low, high = curve[above[0] - 1], curve[above[0]]
    share = (ENDS_AT - low[1]) / (high[1] - low[1])
    return float(low[0] + share * (high[0] - low[0]))


def spread(values, unit=1.0):
    if None in values:
        return f"{values.count(None)} of {len(values)} never"
    deviation = f" ± {np.std(values, ddof=1) / unit:.2f}" if len(values) > 1 else ""
    return f"{np.mean(values) / unit:.2f}{deviation}"


def draw(curves, path):
    figure = matplotlib.figure.Figure(figsize=(8, 4.5), layout="constrained")
    axis = figure.subplots()
    for number, (setting, seeds) in enumerate(curves.items()):
        for place, curve in enumerate(seeds):
            label = None if place else setting
            axis.plot(curve[:, 0] / 1e6, curve[:, 1], color=f"C{number}", label=label)
    axis.axhline(ENDS_AT, color="0.4", linewidth=0.8, linestyle=":")
    axis.set(xlabel="million positions", ylabel="AUC at words drawn again")
    figure.legend(loc="outside right upper", fontsize=8)
    figure.savefig(path, dpi=110)


def main():
    if sys.argv[1:2] == ["--train"]:
        train(sys.argv[3:], Path(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="folder of grammar.py")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/plateau"))
    parser.add_argument("--settings", default=",".join(SETTINGS), help="some of them")
    parser.add_argument("--seeds", default="0", help="such as 0,1,2")
    parser.add_argument("--positions", type=int, default=POSITIONS, help="of a run")
    given = parser.parse_args()
    curves, rows = {}, []
    for setting in given.settings.split(","):
        name = setting.replace(" ", "_").replace("/", "of")
        curves[setting] = []
        for seed in given.seeds.split(","):
            place = given.output_dir / f"{name}-{seed}"
            run = (setting, seed, given.data, place, given.positions)
            curves[setting].append(curve_of(*run))
        ends = [ending(curve) for curve in curves[setting]]
        last = [float(curve[-1, 1]) for curve in curves[setting]]
        rows.append({"setting": setting, "positions": ends, "auc": last})
    print("| setting | million positions | AUC at the end |\n|---|---|---|")
    for row in rows:
        ends, last = spread(row["positions"], 1e6), spread(row["auc"])
        print(f"| {row['setting']} | {ends} | {last} |")
    draw(curves, ROOT / "docs" / "images" / "plateau-grammar.png")
    result = {"hardware": harness.hardware(), "ends_at": ENDS_AT, "rows": rows}
    path = harness.RESULTS / "plateau-grammar.json"
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
