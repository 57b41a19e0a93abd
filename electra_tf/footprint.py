"""Parameters and activations of encoders and heads, from plain numbers.

Letters as in ``flops``: S sequence length, V vocabulary, E embedding size, D hidden
size, F feed-forward size, N heads, L layers.
"""

from electra_tf.flops import EncoderShape


def parameter_count(
    discriminator: EncoderShape,
    generator: EncoderShape | None = None,
    *,
    head: str = "replaced_token",
    sharing: str = "tied",
) -> dict[str, int]:
    """Counts the trainable parameters of an encoder, or of ELECTRA with both.

    Args:
        discriminator: the encoder with the head.
        generator: the masked LM, of one or two towers; None leaves it out.
        head: of the discriminator: "replaced_token", "masked_lm" or "copying".
        sharing: what generator and discriminator share, as `--sharing`.

    Returns:
        Dict of part to count. `backbone` is what fine-tuning starts from;
        `discriminator` adds its head; `joint` is everything, shared variables once.

    Raises:
        ValueError: unknown head or sharing.
    """
    _check("head", head, _HEADS)
    _check("sharing", sharing, _UNSHARED)
    d = discriminator
    counts = {
        "embeddings": _embeddings(d),
        "projection": _projection(d),
        "layer": _layer(d),
        "encoder": d.num_layers * _layer(d),
        "head": _HEADS[head](d),
    }
    counts["backbone"] = sum(counts[n] for n in ("embeddings", "projection", "encoder"))
    counts["discriminator"] = counts["backbone"] + counts["head"]
    if generator is None:
        return counts
    g = generator
    own = {
        "generator_projection": g.num_towers * _projection(g),
        "generator_encoder": g.num_towers * g.num_layers * _layer(g),
        "generator_head": _masked_lm(g),
        "unshared_embeddings": _UNSHARED[sharing](d, g),
    }
    if sharing == "all":
        own |= {"generator_projection": 0, "generator_encoder": 0}
    return {**counts, **own, "joint": counts["discriminator"] + sum(own.values())}


def kept_per_token(encoder: EncoderShape, sequence_length: int) -> int:
    """Activation values that the backward pass needs of each token.

        2 E + sum over layers (12 D + 2 F + N S)

    12 D: input, query, key, value, context, both residual sums, both layer norms, and
    their dropout; 2 F: before and after the activation; N S: attention probabilities,
    kept once with their dropout in the sign. All towers count.
    """
    e = encoder
    layer = 12 * e.hidden_size + 2 * e.feed_forward_size + e.num_heads * sequence_length
    return e.num_towers * (2 * e.embedding_size + e.num_layers * layer)


def _embeddings(e):
    """The three tables and their LayerNorm."""
    return (e.vocab_size + e.max_positions + e.num_segments + 2) * e.embedding_size


def _projection(e):
    return (e.embedding_size + 1) * e.hidden_size if e.has_projection else 0


def _layer(e):
    d, f = e.hidden_size, e.feed_forward_size
    return 4 * (d * d + d) + (2 * d * f + f + d) + 4 * d


def _replaced_token(e):
    return e.hidden_size * (e.hidden_size + 1) + e.hidden_size + 1


def _masked_lm(e):
    return (e.output_size + 3) * e.embedding_size + e.vocab_size


_HEADS = {
    "replaced_token": _replaced_token,
    "masked_lm": _masked_lm,
    "copying": lambda e: _masked_lm(e) + e.hidden_size + 1,
}

# Parameters of embeddings beyond the discriminator's (or, for "gdes", beyond the
# generator's: deltas and a LayerNorm), from the shapes of both.
_UNSHARED = {
    "tied": lambda d, g: 0,
    "token": lambda d, g: _embeddings(g) - g.vocab_size * g.embedding_size,
    "untied": lambda d, g: _embeddings(g),
    "nes": lambda d, g: _embeddings(g),
    "gdes": lambda d, g: _embeddings(d),
    "all": lambda d, g: 0,
}


def _check(what, name, table):
    if name not in table:
        raise ValueError(f"{what} is {name!r}; allowed are {', '.join(table)}.")
