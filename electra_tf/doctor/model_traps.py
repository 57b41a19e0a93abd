"""Traps of the networks as such: what they compute, and whether parts fit together."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np

from electra_tf.doctor.subject import (
    SHARED,
    Finding,
    Subject,
    Tower,
    layer_of,
    ok,
    problem,
    warning,
)

EXACT_GELU = ("gelu",)
# Sharing, by the flag of that name, to the tables that are then the same.
_SHARED_BY = {"tied": SHARED, "all": SHARED, "token": ("word_embeddings",)}
TANH_GELU = ("gelu_new", "gelu_tanh", "gelu_pytorch_tanh", "gelu_fast", "gelu_10")


def gelu(subject: Subject) -> Iterator[Finding]:
    """Exact or by tanh: ELECTRA was trained with the exact one."""
    for name, activations in _by(subject, lambda tower: tower.activation).items():
        if name in EXACT_GELU:
            yield ok(f"exact in {activations}")
        elif name in TANH_GELU:
            yield warning(
                f"{activations}: {name}, the tanh approximation; Google's code and "
                "this library compute the exact function",
                "If the weights came from Google's or from this library, use the exact "
                'one (Hugging Face: "hidden_act": "gelu"). If they were trained with '
                "the approximation, outputs here differ by about 1e-3.",
            )
        else:
            yield problem(
                f"{activations}: the activation is {name}, not GELU",
                "This is not the network of the paper; this library cannot compute it.",
            )


def layer_norm_epsilon(subject: Subject) -> Iterator[Finding]:
    """1e-12; what a framework has by default is another number."""
    found = _by(subject, lambda tower: tower.layer_norm_epsilon)
    for epsilon, towers in found.items():
        if epsilon == 1e-12:
            yield ok(f"1e-12 in {towers}")
            continue
        # Initial embeddings have a variance of 1e-3.
        say = problem if epsilon >= 1e-4 else warning
        yield say(
            f"{epsilon:g} in {towers}; ELECTRA has 1e-12"
            + (", and this one is of the size of the variances" * (epsilon >= 1e-4)),
            "Set it to 1e-12 unless the weights were trained with this one "
            '(Hugging Face: "layer_norm_eps").',
        )


def pooler(subject: Subject) -> Iterator[Finding]:
    """ELECTRA has none; one that is there was most likely never trained."""
    for tower in subject.towers.values():
        biases = [n for n in tower.tensors if "pool" in n and n.endswith("bias")]
        for name in biases:
            if not tower.statistics[name].is_zero:
                yield ok(f"{name} was trained")
                continue
            yield warning(
                f"{name} is 0: the pooler was never trained, its output is noise",
                "Take the hidden state of the first token as it is "
                '("sequence_output"[:, 0]); ELECTRA has no pooler.',
            )
    if subject.towers and not any(
        "pool" in name for t in subject.towers.values() for name in t.tensors
    ):
        yield ok("none, as it should be")


def heads(subject: Subject) -> Iterator[Finding]:
    """Without its heads a pair cannot detect, fill in or go on training."""
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
    found = subject.towers.keys()
    if subject.kind == "google_tf1" and found and "generator" not in found:
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
        missing = _missing_in_layers(tower)
        if missing:
            yield problem(
                f"{tower.name}: {', '.join(missing)} missing",
                "The checkpoint is not whole; get or write it again.",
            )
        if not wrong and not missing:
            yield ok(
                f"{tower.name}: {tower.sizes['num_layers']} whole layers of "
                f"{tower.sizes.get('hidden_size', '?')}"
            )


def shared_tables(subject: Subject) -> Iterator[Finding]:
    """Generator and discriminator share their tables: the same values in both files."""
    towers = subject.towers
    roles = {"generator": _shared_roles(subject), "encoder": SHARED}
    for first, shared in roles.items():
        if first in towers and "discriminator" in towers:
            yield from _compare(towers[first], towers["discriminator"], shared)
    if "generator" in towers:
        yield from _tied_output(towers["generator"])


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


def _by(subject, value) -> dict:
    """Names of the towers by a value of theirs, None left out."""
    found: dict = {}
    for tower in subject.towers.values():
        if value(tower) is not None:
            found.setdefault(value(tower), []).append(tower.name)
    return {key: ", ".join(names) for key, names in found.items()}


def _missing_in_layers(tower: Tower) -> list[str]:
    """Tensors that some layer has and another one lacks."""
    layers: dict[int, set[str]] = {}
    for name in tower.tensors:
        layer = layer_of(name)
        if layer is not None:
            leaf = re.sub(r"(layer[._])\d+", r"\g<1>*", name)
            layers.setdefault(layer, set()).add(leaf)
    every = set().union(*layers.values()) if layers else set()
    count = tower.sizes["num_layers"]
    return [
        leaf.replace("*", str(layer))
        for layer in range(count)
        for leaf in sorted(every - layers.get(layer, set()))
    ][:5]


def _compare(first: Tower, second: Tower, roles) -> Iterator[Finding]:
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


def _shared_roles(subject) -> tuple[str, ...]:
    """What generator and discriminator share, as the flags have it."""
    return _SHARED_BY.get(subject.flags.get("sharing", "tied"), ())


def _tied_output(generator: Tower) -> Iterator[Finding]:
    output, words = generator.table("output"), generator.table("word_embeddings")
    if output is None or words is None:
        return
    if output.shape == words.shape and np.array_equal(output, words):
        yield ok("the generator's output matrix is the word table")
    else:
        yield problem(
            "the generator's output matrix is not the word table, which it is tied to",
            "It was trained untied, or only one of the two was loaded; this library "
            "has no second matrix.",
        )


def _generator_share(subject) -> tuple[float, float] | None:
    """Width and depth of the generator as fractions of the discriminator's."""
    towers = subject.towers
    if {"generator", "discriminator"} <= towers.keys():
        shares = [
            towers["generator"].sizes.get(name, math.nan)
            / towers["discriminator"].sizes.get(name, math.nan)
            for name in ("hidden_size", "num_layers")
        ]
        return None if any(map(math.isnan, shares)) else (shares[0], shares[1])
    flags = subject.flags
    if not towers and flags.get("objective") != "mlm" and flags:
        return flags["generator_hidden_size"], flags["generator_layers"]
    return None
