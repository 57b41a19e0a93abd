"""Traps of the networks: what they compute, whether parts fit, what weights hold."""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from electra_tf.doctor.subject import (
    SHARED,
    Finding,
    Subject,
    Tower,
    ok,
    problem,
    warning,
)

# Sharing, by the flag of that name, to the tables that are then the same.
_SHARED_BY = {"tied": SHARED, "all": SHARED, "token": ("word_embeddings",)}
_TANH_GELU = ("gelu_new", "gelu_tanh", "gelu_pytorch_tanh", "gelu_fast", "gelu_10")
_LAYER = re.compile(r"layer[._](\d+)")

# Of a normal distribution cut at two standard deviations: its largest value over its
# root mean square. The ratio stays when weight decay shrinks rows that get no gradient.
_CUT = 2 / 0.8796
# Fewer values than these do not tell a cut distribution from a whole one.
_LEAST_VALUES = 400
_LAST_ROWS = 8
# Standard deviation of a plain normal initializer, with room for chance.
_PLAIN = 0.021


def gelu(subject: Subject) -> Iterator[Finding]:
    """Exact or by tanh: ELECTRA was trained with the exact one."""
    for name, towers in _towers_by(subject, "activation"):
        if name == "gelu":
            yield ok(f"exact in {towers}")
        elif name in _TANH_GELU:
            yield warning(
                f"{towers}: {name}, the tanh approximation; Google's code and "
                "this library compute the exact function",
                "If the weights came from Google's or from this library, use the exact "
                'one (Hugging Face: "hidden_act": "gelu"). If they were trained with '
                "the approximation, outputs here differ by about 1e-3.",
            )
        else:
            yield problem(
                f"{towers}: the activation is {name}, not GELU",
                "This is not the network of the paper; this library cannot compute it.",
            )


def layer_norm_epsilon(subject: Subject) -> Iterator[Finding]:
    """1e-12; what a framework has by default is another number."""
    for epsilon, towers in _towers_by(subject, "layer_norm_epsilon"):
        if epsilon == 1e-12:
            yield ok(f"1e-12 in {towers}")
            continue
        # Initial embeddings have a variance of 1e-3: what is added to it must be less.
        is_large = epsilon >= 1e-4
        yield (problem if is_large else warning)(
            f"{epsilon:g} in {towers}; ELECTRA has 1e-12"
            + ", and this one is of the size of the variances" * is_large,
            "Set it to 1e-12 unless the weights were trained with this one "
            '(Hugging Face: "layer_norm_eps").',
        )


def pooler(subject: Subject) -> Iterator[Finding]:
    """ELECTRA has none; one that is there was most likely never trained."""
    towers = subject.towers.values()
    names = [(tower, name) for tower in towers for name in tower.tensors]
    pools = [(tower, name) for tower, name in names if "pool" in name]
    for tower, name in pools:
        # One update would have moved a bias away from zero.
        if name.endswith("bias") and not tower.statistics[name].is_zero:
            yield ok(f"{name} was trained")
        elif name.endswith("bias"):
            yield warning(
                f"{name} is 0: the pooler was never trained, its output is noise",
                "Take the hidden state of the first token as it is "
                '("sequence_output"[:, 0]); ELECTRA has no pooler.',
            )
    if towers and not pools:
        yield ok("none, as it should be")


def heads(subject: Subject) -> Iterator[Finding]:
    """Without its heads a pair cannot detect, fill in or be trained further."""
    for tower in subject.towers.values():
        if tower.has_head:
            yield ok(f"the {tower.name} has its head")
        elif tower.name != "encoder":
            yield problem(
                f"the {tower.name} lacks its head, though it is declared as one",
                "Export it again from the model with its head (ElectraForPreTraining, "
                "ElectraForMaskedLM; Google: a pretraining checkpoint).",
            )
        elif subject.kind != "run":
            yield warning(
                "an encoder without head: it can be fine-tuned, but neither detects "
                "replaced tokens nor fills in masks, and cannot be trained further",
                "Take the weights from a source with heads if you need these.",
            )
    towers = subject.towers
    if subject.kind == "google_tf1" and towers and "generator" not in towers:
        yield warning(
            "there is no generator: a fine-tuned or stripped checkpoint",
            "Take the pretraining checkpoint to fill in masks or to train further.",
        )


def sizes(subject: Subject) -> Iterator[Finding]:
    """Shapes against the config beside them, and layers that are whole."""
    for tower in subject.towers.values():
        wrong = [
            f"{name} {tower.sizes[name]:,} where the config says {value:,}"
            for name, value in tower.declared.items()
            if tower.sizes.get(name, value) != value
        ]
        if wrong:
            yield problem(
                f"{tower.name}: {', '.join(wrong)}",
                "The config is of another network (often: a generator with the "
                "discriminator's config). Take the one that belongs to the weights.",
            )
        if not tower.sizes["num_layers"]:
            yield problem(
                f"{tower.name}: no layer of an ELECTRA among {len(tower.tensors)} "
                "tensors",
                "The weights are of something else; get those that belong here.",
            )
            continue
        if missing := _missing_in_layers(tower):
            yield problem(
                f"{tower.name}: {', '.join(missing)} missing",
                "The checkpoint is not whole; get or write it again.",
            )
        if not (wrong or missing):
            yield ok(
                f"{tower.name}: {tower.sizes['num_layers']} whole layers of "
                f"{tower.sizes.get('hidden_size', '?')}"
            )


def shared_tables(subject: Subject) -> Iterator[Finding]:
    """Generator and discriminator share their tables: the same values in both files."""
    towers = subject.towers
    by_flag = _SHARED_BY.get(subject.flags.get("sharing", "tied"), ())
    for first, shared in (("generator", by_flag), ("encoder", SHARED)):
        if first in towers and "discriminator" in towers:
            yield from _compare(towers[first], towers["discriminator"], shared)
    if "generator" not in towers:
        return
    generator = towers["generator"]
    output, words = generator.table("output"), generator.table("word_embeddings")
    if output is None or words is None:
        return
    if np.array_equal(output, words):
        yield ok("the generator's output matrix is the word table")
    else:
        yield problem(
            "the generator's output matrix is not the word table, which it is tied to",
            "It was trained untied, or only one of the two was loaded; this library "
            "has no second matrix.",
        )


def generator_size(subject: Subject) -> Iterator[Finding]:
    """A quarter to half of the discriminator; a stronger one leaves nothing to find."""
    share = _generator_share(subject)
    if share is None:
        return
    width, depth = share
    said = f"{width:.3g} of the width and {depth:.3g} of the layers"
    if subject.flags.get("sharing") == "all":
        yield ok("one encoder for both, as the flags ask for")
    elif width > 1 or depth > 1:
        yield problem(
            f"the generator is larger than the discriminator: {said}",
            "Are the two files swapped? Else train with a smaller generator.",
        )
    elif width > 0.5 and depth > 0.5:
        yield warning(
            f"the generator is strong: {said} of the discriminator; the paper found "
            "1/4 to 1/2 of the width best, and an equal one lost 3 GLUE points",
            "For a new run lower --generator_hidden_size or --generator_layers. "
            "(Google's released electra_small has an equal one: to continue it, keep "
            "1.0.)",
        )
    else:
        yield ok(said)


def _towers_by(subject: Subject, attribute: str) -> Iterable[tuple[Any, str]]:
    """(value, names of the towers that have it) of every known value."""
    names = collections.defaultdict(list)
    for tower in subject.towers.values():
        names[getattr(tower, attribute)].append(tower.name)
    names.pop(None, None)
    return [(value, ", ".join(towers)) for value, towers in names.items()]


def _missing_in_layers(tower: Tower) -> list[str]:
    """Tensors that some layer has and another one lacks."""
    # What stands before and after the number of a layer.
    around = {
        (name[: match.start(1)], name[match.end(1) :])
        for name in tower.tensors
        if (match := _LAYER.search(name))
    }
    pairs = itertools.product(range(tower.sizes["num_layers"]), sorted(around))
    names = (f"{before}{layer}{after}" for layer, (before, after) in pairs)
    return [name for name in names if name not in tower.tensors][:5]


def _compare(first: Tower, second: Tower, roles: Iterable[str]) -> Iterator[Finding]:
    differing = []
    for role in roles:
        ours, theirs = first.table(role), second.table(role)
        if ours is None or theirs is None:
            continue
        if ours.shape != theirs.shape:
            differing.append(f"{role} {list(ours.shape)} against {list(theirs.shape)}")
        elif not np.array_equal(ours, theirs):
            apart = float(np.abs(ours - theirs).max())
            differing.append(f"{role} by up to {apart:.2g}")
    names = f"{first.name} and {second.name}"
    if not roles:
        yield ok(f"{names} share none, as the flags ask for")
    elif not differing:
        yield ok(f"equal in {names}")
    else:
        yield problem(
            f"{names} disagree in what they share: {', '.join(differing)}",
            "The files are of different runs or steps, unless the run was untied on "
            "purpose. Take all of one finished run.",
        )


def _generator_share(subject: Subject) -> tuple[float, float] | None:
    """Width and depth of the generator as fractions of the discriminator's."""
    towers, flags = subject.towers, subject.flags
    if {"generator", "discriminator"} <= towers.keys():
        ours, theirs = (towers[n].sizes for n in ("generator", "discriminator"))
        names = ("hidden_size", "num_layers")
        if not all(name in ours and name in theirs for name in names):
            return None
        width, depth = (ours[name] / theirs[name] for name in names)
        return width, depth
    names = ("generator_hidden_size", "generator_layers")
    if towers or flags.get("objective") == "mlm" or not all(n in flags for n in names):
        return None
    return flags[names[0]], flags[names[1]]


def finite(subject: Subject) -> Iterator[Finding]:
    """NaN and infinity."""
    for tower in subject.towers.values():
        bad = [n for n, s in tower.statistics.items() if not s.is_finite]
        if bad:
            yield problem(
                f"{tower.name}: values that are not finite in {_some(bad)}",
                "The run diverged or the file is damaged. Go back to a checkpoint from "
                "before, and lower the learning rate (base and large: 2e-4).",
            )
        else:
            yield ok(f"{tower.name}: {len(tower.tensors)} tensors are finite")


def zeros(subject: Subject) -> Iterator[Finding]:
    """Kernels, tables and LayerNorm factors that are 0 everywhere."""
    for tower in subject.towers.values():
        empty = (name for name, values in tower.statistics.items() if values.is_zero)
        bad = [name for name in empty if not _is_offset(name)]
        if bad:
            yield problem(
                f"{tower.name}: all zeros in {_some(bad)}",
                "They were never filled: an import that missed them, or a file that "
                "was written before its weights were there. Import or save again.",
            )
        elif tower.tensors:
            yield ok(f"{tower.name}: no kernel or table is zero")


def untrained(subject: Subject) -> Iterator[Finding]:
    """Parts whose biases are all 0 and whose LayerNorms are all 1, as at the start."""
    for tower in subject.towers.values():
        # Whether each part with biases or LayerNorms is as at the start.
        parts: dict[str, bool] = collections.defaultdict(lambda: True)
        for name, values in tower.statistics.items():
            if (part := _part_of(name)) == "pooler":
                continue
            if _is_scale(name):
                parts[part] &= values.is_one
            elif _is_offset(name):
                parts[part] &= values.is_zero
        fresh = [part for part, is_fresh in parts.items() if is_fresh]
        if not fresh:
            yield ok(f"{tower.name}: all {len(parts)} parts have left their start")
            continue
        what = "nothing was ever trained" if len(fresh) == len(parts) else "untrained"
        yield problem(
            f"{tower.name}: {what}: {_some(fresh)} "
            f"(biases 0, LayerNorm 1; kernels have std {_spread(tower, fresh)}, those "
            "of --initializer_range=0.02 0.0176)",
            "These are initial values: the weights were not loaded, or the part was "
            "added afterwards. Take the checkpoint that has them.",
        )


def positions(subject: Subject) -> Iterator[Finding]:
    """Rows of the position table beyond the longest example of pretraining."""
    trained = subject.flags.get("max_seq_length")
    if subject.kind == "config" and trained:
        rows = subject.flags["max_positions"]
        if trained < rows:
            yield warning(
                f"examples have at most {trained} tokens, so rows {trained} to "
                f"{rows - 1} of the position table stay untrained",
                f"Fine-tune with at most {trained} tokens, end with a phase of longer "
                f"sequences, or set --max_positions={trained}.",
            )
        else:
            yield ok(f"all {rows} positions occur in training")
        return
    for tower in subject.towers.values():
        table = tower.table("position_embeddings")
        if table is None or (tower.name == "encoder" and len(subject.towers) > 1):
            continue
        rows, first = len(table), untrained_rows(table)
        advice = "Use it with at most {} tokens, or pretrain on longer sequences first."
        if first < rows:
            what = f"rows {first} to {rows - 1} of {rows} look as initialised"
            say = problem if first == 0 else warning
            yield say(f"{tower.name}: {what}", advice.format(first or trained))
        elif trained and trained < rows:
            told = f"pretraining had at most {trained} tokens"
            what = f"{tower.name}: {told}, the table has {rows} rows"
            yield warning(what, advice.format(trained))
        else:
            yield ok(f"{tower.name}: all {rows} rows are trained")


def untrained_rows(table: np.ndarray) -> int:
    """First row of a table from which on all look as initialised; else their number.

    Initial rows are equally large and do not resemble their neighbours, as trained
    ones do. Moreover those of a truncated normal (Google's code, Keras) have no value
    above 2.27 times their root mean square, a ratio that weight decay keeps; those of
    a plain normal (PyTorch) have a standard deviation of 0.02, or less by decay.
    """
    count, size = table.shape
    last = table[-_LAST_ROWS:]
    if last.size < _LEAST_VALUES or not np.isfinite(table).all() or not last.any():
        return count
    scale = float(np.sqrt(np.mean(np.square(last))))
    slack = 1 + 4 / np.sqrt(2 * last.size)
    is_cut = np.abs(last).max() <= _CUT * scale * slack
    # How much rows resemble their neighbours, in standard errors of noise.
    products = last[1:] * last[:-1]
    likeness = abs(np.mean(products)) / scale**2 * np.sqrt(products.size)
    if likeness > 4 or not (is_cut or scale <= _PLAIN):
        return count
    spread = np.sqrt(np.mean(np.square(table), axis=1)) / scale
    is_fresh = np.abs(spread - 1) <= 5 / np.sqrt(2 * size)
    if is_cut:
        is_fresh &= np.abs(table).max(axis=1) <= _CUT * scale * slack
    if not is_fresh[-_LAST_ROWS:].all():
        return count
    trained = np.flatnonzero(~is_fresh)
    return int(trained[-1]) + 1 if len(trained) else 0


def _part_of(name: str) -> str:
    """What of a network a tensor belongs to, whatever format named it."""
    if layer := _LAYER.search(name):
        return f"layer {layer[1]}"
    if "pool" in name:
        return "pooler"
    if "predict" in name or "head" in name:
        return "head"
    return "embeddings projection" if "project" in name else "embeddings"


def _is_scale(name: str) -> bool:
    """Whether it is the factor of a LayerNorm, 1 before training."""
    return bool(re.search(r"(gamma|norm\.weight)$", name, re.IGNORECASE))


def _is_offset(name: str) -> bool:
    """Whether it is a bias or the offset of a LayerNorm, 0 before training."""
    return name.endswith(("bias", "beta"))


def _spread(tower: Tower, parts: Iterable[str]) -> str:
    """Standard deviations of the kernels of some parts."""
    kernels = (name for name, t in tower.tensors.items() if len(t.shape) > 1)
    kernels = [tower.statistics[n].std for n in kernels if _part_of(n) in parts]
    if not kernels:
        return "?"
    low, high = f"{min(kernels):.3f}", f"{max(kernels):.3f}"
    return low if low == high else f"{low} to {high}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more
