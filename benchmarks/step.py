"""One training step of ELECTRA, against Hugging Face's modules on PyTorch.

    python benchmarks/step.py
    python benchmarks/step.py --size tiny --precision float32 --rounds 3
    python benchmarks/step.py --ablate --precision bfloat16 --output=ablated.json

Our side is the compiled train function of ``run_pretraining.py`` and its check of the
logs: forward, backward, clip, AdamW, metrics. The peer is ``ElectraForMaskedLM`` and
``ElectraForPreTraining`` with tied embeddings, vocabulary logits at the masked
positions only, SDPA, fused AdamW, and no metrics but the loss. Its weights are float32
like ours; it computes in bfloat16 by autocast or with bfloat16 copies of them,
whichever is faster. Both sides get the same batches in memory and all cores.

With --ablate the peers are our own step with one fused operation at a time replaced by
plain TensorFlow (``layers/fused.py`` against ``layers/plain.py``).

The matmul rate is TensorFlow's on the products of one discriminator layer, forward, in
the same rounds. FLOPs count the products only (``systems.costs.phases``, rule
"matmul"), without recomputed activations and dropout. Peak memory is measured in a
fresh process after its imports.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import argparse
import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable
from unittest import mock

import harness
import numpy as np

OURS, PRODUCTS = "electra_tf", "products"


@dataclasses.dataclass(frozen=True)
class Size:
    """Sizes of the discriminator and of a batch; the generator is a quarter as wide."""

    layers: int
    width: int
    heads: int
    embedding: int
    vocab: int
    rows: int
    length: int


SIZES = {
    "tiny": Size(2, 256, 4, 128, 8192, 64, 64),
    "mini": Size(4, 256, 4, 128, 8192, 64, 64),
    "small": Size(12, 256, 4, 128, 30522, 32, 128),
    "base": Size(12, 768, 12, 768, 30522, 4, 512),
    "large": Size(24, 1024, 16, 1024, 30522, 2, 512),
}
GENERATOR = 0.25

# Ratios to reach, in bfloat16.
BARS = {"tiny": 3.0, "mini": 3.0, "small": 2.2}

# How PyTorch computes in bfloat16.
PEERS = {
    "autocast": "autocast",
    "copies": "bfloat16 copies of float32 weights",
}


def config_of(size: Size, precision: str, remat: bool = False):
    """Returns the ``PretrainConfig`` of a run of that size."""
    from electra_tf.config import fields
    from electra_tf.config.pretraining import PretrainConfig

    flags = {
        "train_batch_size": size.rows,
        "mixed_precision": "none" if precision == "float32" else precision,
        "max_seq_length": size.length,
        "vocab_size": size.vocab,
        "num_layers": size.layers,
        "hidden_size": size.width,
        "num_heads": size.heads,
        "intermediate_size": 4 * size.width,
        "embedding_size": size.embedding,
        "remat": remat,
        "generator_hidden_size": GENERATOR,
    }
    return fields.from_flat(flags, PretrainConfig)


def batches(size: Size, count: int = 4) -> list[dict[str, np.ndarray]]:
    """Returns random tokens by the names of ``features.PRETRAINING``."""
    masked = int(0.155 * size.length)
    rng = np.random.default_rng(0)
    made = []
    for _ in range(count):
        ids = rng.integers(5, size.vocab, (size.rows, size.length), np.int32)
        positions = np.stack(
            [np.sort(rng.choice(size.length, masked, False)) for _ in range(size.rows)]
        ).astype(np.int32)
        shown = ids.copy()
        np.put_along_axis(shown, positions, 4, axis=1)
        made.append(
            {
                "input_ids": ids,
                "masked_input_ids": shown,
                "input_mask": np.ones_like(ids),
                "segment_ids": np.zeros_like(ids),
                "masked_lm_positions": positions,
                "masked_lm_ids": np.take_along_axis(ids, positions, axis=1),
                "masked_lm_weights": np.ones(positions.shape, np.float32),
            }
        )
    return made


def ours(size: Size, precision: str, remat: bool = False) -> Callable[[], dict]:
    """Returns a function that takes one step as a run does and returns its logs."""
    import tensorflow as tf

    from electra_tf.systems import build
    from electra_tf.training.callbacks import first_nonfinite

    config = config_of(size, precision, remat)
    model = build.compiled_phases(config, size.vocab)[-1].model
    given = batches(size)
    stacked = {name: np.stack([b[name] for b in given]) for name in given[0]}
    data = tf.data.Dataset.from_tensor_slices(stacked).cache().repeat().prefetch(2)
    iterator = iter(data)
    model.make_train_function()

    def step() -> dict:
        logs = model.train_function(iterator)
        # A run checks the logs of every step.
        if bad := first_nonfinite(model, logs):
            raise FloatingPointError(bad)
        return logs

    return step


def with_plain(operation: str, size: Size, precision: str) -> Callable[[], None]:
    """Returns our step, compiled with one fused operation in plain TensorFlow."""
    from electra_tf.layers import fused, plain

    with mock.patch.object(fused, operation, getattr(plain, operation)):
        step = ours(size, precision)
        step()
    return step


def peer(
    size: Size, mode: str, device: str = "cpu", compile: bool = False
) -> Callable[[], None]:
    """Returns the step in PyTorch; modes are "float32" and the keys of ``PEERS``."""
    import torch
    from torch.nn import functional
    from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

    torch.manual_seed(0)
    torch.set_num_threads(os.cpu_count())

    def network(kind: type, share: float) -> torch.nn.Module:
        width = round(size.width * share)
        return kind(
            ElectraConfig(
                vocab_size=size.vocab,
                embedding_size=size.embedding,
                hidden_size=width,
                num_hidden_layers=size.layers,
                num_attention_heads=max(1, round(size.heads * share)),
                intermediate_size=4 * width,
                attn_implementation="sdpa",
            )
        ).train()

    generator = network(ElectraForMaskedLM, GENERATOR)
    discriminator = network(ElectraForPreTraining, 1.0)
    discriminator.electra.embeddings = generator.electra.embeddings
    table = generator.electra.embeddings.word_embeddings.weight
    generator.generator_lm_head.weight = table
    both = torch.nn.ModuleList([generator, discriminator]).to(device)
    weights = list(both.parameters())
    updated = weights
    if mode == "copies":
        updated = [torch.nn.Parameter(weight.detach().clone()) for weight in weights]
        both.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(updated, 5e-4, eps=1e-6, fused=True)
    given = [{n: torch.from_numpy(v) for n, v in b.items()} for b in batches(size)]
    # PyTorch indexes with int64; the conversion is not part of the step.
    given = [{n: v.long().to(device) for n, v in batch.items()} for batch in given]
    each_row = torch.arange(size.rows, device=device)[:, None]
    stream = itertools.cycle(given)

    def losses(batch: dict) -> torch.Tensor:
        positions, targets = batch["masked_lm_positions"], batch["masked_lm_ids"]
        encoded = {
            "attention_mask": batch["input_mask"],
            "token_type_ids": batch["segment_ids"],
        }
        hidden = generator.electra(batch["masked_input_ids"], **encoded)[0]
        hidden = hidden[each_row, positions]
        hidden = generator.generator_predictions(hidden)
        logits = generator.generator_lm_head(hidden).float().flatten(0, 1)
        masked_lm = functional.cross_entropy(logits, targets.flatten())
        drawn = torch.multinomial(logits.detach().softmax(-1), 1).view_as(positions)
        corrupted = batch["input_ids"].scatter(1, positions, drawn)
        replaced = (corrupted != batch["input_ids"]).float()
        scores = discriminator(corrupted, **encoded).logits.float()
        detection = functional.binary_cross_entropy_with_logits(scores, replaced)
        return masked_lm + 50.0 * detection

    if compile:
        losses = torch.compile(losses)

    def step() -> None:
        both.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=mode == "autocast"):
            loss = losses(next(stream))
        loss.backward()
        if mode == "copies":
            for whole, weight in zip(updated, weights, strict=True):
                whole.grad = weight.grad.float()
        torch.nn.utils.clip_grad_norm_(updated, 1.0, foreach=True)
        optimizer.step()
        if mode == "copies":
            with torch.no_grad():
                torch._foreach_copy_(weights, updated)
        if not np.isfinite(loss.item()):
            raise FloatingPointError("the peer's loss is not finite")

    return step


def products_rate(size: Size, precision: str) -> Callable[[], float]:
    """Returns a function for the FLOPs per second of the four products of a layer."""
    import tensorflow as tf

    dtype = tf.float32 if precision == "float32" else tf.bfloat16
    rows, width = size.rows * size.length, size.width
    shapes = [(width, share * width) for share in (3, 1, 4)] + [(4 * width, width)]
    pairs = [
        (tf.ones([rows, i], dtype), tf.random.normal([i, o], dtype=dtype))
        for i, o in shapes
    ]

    @tf.function
    def run() -> list[tf.Tensor]:
        return [tf.matmul(a, b) for a, b in pairs]

    run()
    flops = sum(2.0 * rows * i * o for i, o in shapes)
    return rate(lambda: [x.shape for x in run()], flops, 0.3)


def matmul_shares(config, figures: dict) -> tuple[float, list[float]]:
    """Returns FLOPs per token, and our share of the matmul rate by round, in %."""
    from electra_tf.systems import costs

    ((_, flops),) = costs.phases(config, config.data.vocab_size)
    tokens = config.run.train_batch_size * config.data.max_seq_length
    flops /= tokens
    rounds = zip(figures[OURS], figures[PRODUCTS], strict=True)
    return flops, [100 * speed * flops / matmul for speed, matmul in rounds]


def rate(step: Callable[[], None], units: float, seconds: float) -> Callable[[], float]:
    """Returns units per second of calling ``step`` for some seconds, at least twice."""

    def measure() -> float:
        start, count = time.perf_counter(), 0
        while count < 2 or time.perf_counter() - start < seconds:
            step()
            count += 1
        return count * units / (time.perf_counter() - start)

    return measure


def _peak(name: str, size: Size, mode: str) -> float:
    """Returns the memory that three steps of a side add to this fresh process, MB."""
    if name == OURS:
        import electra_tf.systems.build  # noqa: F401
    else:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    before = harness.peak_memory()
    step = (ours if name == OURS else peer)(size, mode)
    for _ in range(3):
        step()
    return harness.peak_memory() - before


def measure(name: str, precision: str, arguments) -> tuple[list[dict], dict]:
    """Returns the rows of one size and precision, and details for the file."""
    size = SIZES[name]
    tokens = size.rows * size.length
    what = f"{name} step, {size.rows} x {size.length}, {precision}"
    step = ours(size, precision)
    step()
    sides = {
        OURS: rate(step, tokens, arguments.seconds),
        PRODUCTS: products_rate(size, precision),
    }
    names, first_look = {}, {}
    if arguments.peer and not arguments.ablate:
        modes = ["float32"] if precision == "float32" else list(PEERS)
        peers = {mode: peer(size, mode) for mode in modes}
        for mode, step in peers.items():
            step()
            start = time.perf_counter()
            step()
            first_look[mode] = time.perf_counter() - start
        mode = min(first_look, key=first_look.get)
        names = {mode: f"PyTorch, {PEERS.get(mode, mode)}"}
        sides[names[mode]] = rate(peers[mode], tokens, arguments.seconds)
    if arguments.ablate:
        for operation in ("attention", "bias_activation", "bias_drop_add_norm"):
            names[operation] = f"plain {operation}"
            plain_step = with_plain(operation, size, precision)
            sides[names[operation]] = rate(plain_step, tokens, arguments.seconds)
    figures = harness.interleave(sides, arguments.rounds)
    flops, shares = matmul_shares(config_of(size, precision), figures)
    is_barred = precision == "bfloat16" and not arguments.ablate
    bar = BARS.get(name) if is_barred else None
    rows = [
        harness.row(what, figures, ours=OURS, peer=label, unit="tokens/s", bar=bar)
        for label in names.values()
    ]
    share = {"what": f"{what}: share of the matmul rate", "unit": "%"}
    share |= {"ours": statistics.median(shares), "range": [min(shares), max(shares)]}
    rows.append(share)
    if names and not arguments.ablate:
        mode, label = next(iter(names.items()))
        peaks = {
            side: [harness.in_fresh_process(_peak, side, size, how)]
            for side, how in ((OURS, precision), (label, mode))
        }
        about = {"ours": OURS, "peer": label, "unit": "MB"}
        rows.append(harness.row(f"{what}: peak memory", peaks, **about))
    return rows, {
        "flops_per_token": flops,
        "figures": figures,
        "seconds_of_each_peer_at_first": first_look,
    }


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--size", choices=SIZES, default="small")
    precisions = ("bfloat16", "float32")
    parser.add_argument("--precision", choices=precisions, help="default: both")
    parser.add_argument("--seconds", type=float, default=2.0, help="a side and round")
    parser.add_argument("--peer", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--ablate", action="store_true", help="plain operations")
    arguments = parser.parse_args()
    rows, details = [], {}
    for precision in [arguments.precision] if arguments.precision else precisions:
        more, details[precision] = measure(arguments.size, precision, arguments)
        rows += more
    # One file per size.
    output = arguments.output or harness.RESULTS / f"step-{arguments.size}.json"
    harness.report("step", rows, output, details=details)


if __name__ == "__main__":
    main()
