"""Traps of a run: its settings, its vocabulary, and what its metrics say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from electra_tf.data.vocabulary import Vocabulary
from electra_tf.doctor.subject import Finding, Subject, ok, problem, warning
from electra_tf.runs.health import HealthWarnings
from electra_tf.training.sinks import EVAL_PREFIX

# From here on a model is base or large, where Small's settings are known to fail.
_BASE_WIDTH, _LARGE_WIDTH = 768, 1024
_WINDOWS = 5


def files(subject: Subject) -> Iterator[Finding]:
    """What is missing or could not be read."""
    yield from subject.findings
    if not subject.findings and not subject.towers and subject.kind != "config":
        yield problem("there are no tensors in it", "Copy or download it again.")
    elif not subject.findings and subject.kind != "config":
        yield ok("all there")


def learning_rate(subject: Subject) -> Iterator[Finding]:
    """Base and large with the rate of Small diverge."""
    flags = subject.flags
    needed = {"learning_rate", "warmup_steps", "num_train_steps"}
    if not (needed | {"hidden_size", "adam_bias_correction"}) <= flags.keys():
        return
    rate, warmup = flags["learning_rate"], flags["warmup_steps"]
    if flags["hidden_size"] >= _BASE_WIDTH and rate > 3e-4:
        yield problem(
            f"{rate:g} at a hidden size of {flags['hidden_size']}: ELECTRA-Small's "
            "rate in a base or large model, which is known to end in NaN",
            "Use --learning_rate=2e-4 (configs/base.cfg, configs/large.cfg).",
        )
    elif warmup >= flags["num_train_steps"]:
        yield warning(
            f"{rate:g} is never reached: {warmup} warm-up steps of "
            f"{flags['num_train_steps']}",
            "Lower --warmup_steps; the paper has 1 % to 2.5 % of the steps.",
        )
    elif not warmup and not flags["adam_bias_correction"]:
        yield warning(
            f"{rate:g} from the first step on: without warm-up and bias correction the "
            "first updates are three to six times too long",
            "Set --warmup_steps, or --adam_bias_correction.",
        )
    else:
        yield ok(f"{rate:g} after {warmup} warm-up steps")


def recipe(subject: Subject) -> Iterator[Finding]:
    """Base and large with other numbers of Small, which a size name does not change."""
    flags = subject.flags
    width = flags.get("hidden_size", 0)
    if width < _BASE_WIDTH:
        return
    wanted = {"train_batch_size": 256, "max_seq_length": 512}
    if width >= _LARGE_WIDTH:
        wanted |= {"train_batch_size": 2048, "mask_rate": 0.25}
    left = [
        f"{name} {flags[name]:g} (paper: {value:g})"
        for name, value in wanted.items()
        if flags.get(name, value) < value
    ]
    if left:
        yield warning(
            f"numbers below the paper's for this size: {', '.join(left)}",
            "Start from configs/base.cfg or configs/large.cfg; with fewer rows per "
            "update lower the learning rate, too.",
        )
    else:
        yield ok("batch, length and mask rate are the paper's for this size")


def vocabulary(subject: Subject) -> Iterator[Finding]:
    """File, size of the word table, special tokens, hash and casing fit together."""
    if subject.kind == "config":
        return
    vocabulary = subject.vocabulary
    if vocabulary is None:
        yield warning(
            "there is no vocabulary beside the model",
            "Put the vocab.txt it was trained with into the folder.",
        )
    elif isinstance(vocabulary, ValueError):
        yield problem(str(vocabulary), "Put the one it was trained with in its place.")
    else:
        faults = list(_token_faults(subject, vocabulary))
        faults += _casing_faults(subject, vocabulary)
        fine = ok(f"{len(vocabulary):,} tokens, the special ones among them")
        yield from faults or [fine]


def _token_faults(subject: Subject, vocabulary: Vocabulary) -> Iterator[Finding]:
    """Whether the tokens and their ids are those of training."""
    advice = "Put the vocab.txt it was trained with into the folder."
    tokens = len(vocabulary)
    for tower in subject.towers.values():
        rows = tower.sizes.get("vocab_size", tokens)
        text = f"{tower.name}: {rows:,} rows in the word table, {tokens:,} tokens"
        # Elsewhere tables are often padded to a round number of rows.
        if rows > tokens and subject.kind != "run":
            yield warning(f"{text}; the rest may be padding", advice)
        elif rows != tokens:
            yield problem(text, advice)
    ours, theirs = vocabulary.sha256, subject.vocabulary_sha256
    if theirs and theirs != ours:
        yield problem(
            f"vocab.txt is not the one of training: its sha256 is {ours[:12]}, "
            f"config.json says {theirs[:12]}",
            "Put the right file back: with this one every token means another.",
        )
    if vocabulary.pad_id:
        yield warning(
            f"{vocabulary.pad} has the id {vocabulary.pad_id}; Google's code and many "
            "others take 0 for padding",
            "Harmless here; keep it in mind when you export.",
        )


def _casing_faults(subject: Subject, vocabulary: Vocabulary) -> Iterator[Finding]:
    lower_case = subject.casing.get("lower_case")
    words = [t for t in vocabulary.tokens if t not in vocabulary.special_tokens]
    words = [t for t in words if not (t.startswith("[") and t.endswith("]"))]
    capitals = sum(token != token.lower() for token in words)
    if lower_case and capitals > 0.01 * len(words):
        yield warning(
            f"text is lower-cased, but {capitals:,} tokens have capitals, which can "
            "then never occur",
            "Is it a cased vocabulary? Then set lower_case to false "
            "(Hugging Face: do_lower_case).",
        )
    if lower_case is False and not capitals and any(t.isalpha() for t in words):
        yield problem(
            "text is not lower-cased, but no token has a capital: every word with one "
            "becomes [UNK] or crumbs",
            "Set lower_case to true (Hugging Face: do_lower_case).",
        )


def generator_strength(subject: Subject) -> Iterator[Finding]:
    """Whether enough tokens end up replaced, as the run measured it."""
    values = _last(subject)
    if "replaced_fraction" not in values:
        return
    replaced = values["replaced_fraction"]
    said = f"{replaced:.1%} of all tokens were replaced at the end"
    if "generator_accuracy" in values:
        said += f"; the generator's accuracy was {values['generator_accuracy']:.1%}"
    rate = subject.flags.get("mask_rate", 0.15)
    # With an AUC of 1 only the rule on the generator can warn.
    healthy = {"discriminator_auc": 1.0, "discriminator_loss": 0.0}
    if _is_warned(rate, healthy | {"replaced_fraction": replaced}):
        yield warning(
            f"{said}: it guesses so well that little is left to detect",
            "Use a smaller generator, a higher --mask_rate (25 % in ELECTRA-Large) or "
            "a higher --temperature.",
        )
    else:
        yield ok(said)


def collapse(subject: Subject) -> Iterator[Finding]:
    """A discriminator that tells nothing apart, and numbers that are not finite."""
    values = _last(subject)
    last = subject.metrics[-_WINDOWS:]
    # A number that is not finite is written as null.
    lost = {name for row in last for name, value in row.items() if value is None}
    if lost:
        yield problem(
            f"the run was not finite at its end: {', '.join(sorted(lost))}",
            "Go back to a checkpoint from before and lower the learning rate.",
        )
    auc = values.get("replaceable_auc", values.get("discriminator_auc"))
    if auc is None:
        return
    recall = values.get("discriminator_recall", 1.0)
    precision = values.get("discriminator_precision", 1.0)
    said = f"AUC {auc:.3f}, precision {precision:.1%}, recall {recall:.1%} at the end"
    # Without a mask rate only the rules on the discriminator can warn.
    if auc < 0.55 or _is_warned(0.0, values):
        yield problem(
            f"the discriminator does not tell replaced tokens from real ones: {said}",
            "Lower the learning rate or lengthen the warm-up, and check that "
            "--discriminator_weight is 50. After few steps (some thousands) it may "
            "only need more.",
        )
    elif recall == 0 or precision == 0:
        yield warning(
            f"the discriminator calls no replaced token replaced: {said}",
            "Normal early in training (the AUC rises first); else see that the "
            "generator is weak enough.",
        )
    else:
        yield ok(said)


def finished(subject: Subject) -> Iterator[Finding]:
    """Whether the metrics reach the last step."""
    steps = subject.flags.get("num_train_steps")
    done = max((row.get("step", 0) for row in subject.metrics), default=None)
    if not steps or done is None:
        return
    if done < steps:
        yield warning(
            f"{done:,} of {steps:,} steps: the learning rate has not come down",
            "Run the same command again to resume it.",
        )
    else:
        yield ok(f"{done:,} steps")


def optimizer_slots(subject: Subject) -> Iterator[Finding]:
    """Google's releases have none, which stops their own training code."""
    slots = subject.optimizer_slots
    if slots:
        yield ok(f"{slots} Adam slots: a training checkpoint")
    elif slots is not None:
        yield warning(
            "weights only, without Adam slots, as Google's releases",
            "Google's own code stops at them (adam_m missing). Here an import starts "
            "the optimizer anew: begin with a warm-up.",
        )


def _last(subject: Subject) -> Mapping[str, float]:
    """The last held-out numbers, else means over the last training windows."""
    rows = [
        {n.removeprefix(EVAL_PREFIX): v for n, v in row.items() if v is not None}
        for row in subject.metrics
        if any(name.startswith(EVAL_PREFIX) for name in row)
    ]
    if rows:
        return rows[-1]
    rows = [r for r in subject.metrics if r.get("replaced_fraction") is not None]
    rows = rows[-_WINDOWS:]
    names = set.intersection(*(set(row) for row in rows)) if rows else set()
    return {
        name: sum(row[name] for row in rows) / len(rows)
        for name in names
        if all(isinstance(row[name], int | float) for row in rows)
    }


def _is_warned(mask_rate: float, values: Mapping[str, float]) -> bool:
    """Whether training would have warned of a window with these values."""
    if not {"discriminator_loss", "replaced_fraction"} <= values.keys():
        return False
    said: list[str] = []
    HealthWarnings(mask_rate, min_steps=0, windows=1, log=said.append)(0, values)
    return bool(said)
