"""What every format is read into and written from: arrays under our own names.

A format is a module with

    OUTPUTS               paths of all files that `write` may leave in a folder
    detect(source)        `Source` -> whether this format can read it
    read(source)          `Source` -> `Imported`
    write(folder, model)  `Imported` -> files in an existing, empty folder; returns
                          what the format cannot hold, a sentence each

and a row in the table `FORMATS` of `electra_tf.convert`. What a source does not say
(vocabulary, casing, trained length) stays None; `electra_tf.convert` fills it in.

Letters: V vocabulary, E embedding size, D hidden size, F feed-forward size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from electra_tf.data.vocabulary import Vocabulary

Arrays = Mapping[str, np.ndarray]

EMBEDDINGS = "embeddings/"


@dataclasses.dataclass(frozen=True)
class Source:
    """What to read, and what its files may not say.

    Attributes:
        path: A folder, a file, or a name on a hub.
        generator: Where the generator is, if it is somewhere else.
        num_heads: Attention heads; None is what the source says.
        generator_num_heads: Attention heads of the generator, likewise.
        only: "discriminator" or "generator" to leave the other one out.
    """

    path: str
    generator: str | None = None
    num_heads: int | None = None
    generator_num_heads: int | None = None
    only: str | None = None

    def refuse(self, *names: str) -> None:
        """For a format that says these itself, or has not what they are of.

        Raises:
            ValueError: One of the attributes `names` is given.
        """
        given = [f"--{name}" for name in names if getattr(self, name) is not None]
        if given:
            raise ValueError(
                f"{self.path} leaves nothing to say for {' and '.join(given)}: leave "
                "it out."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes, dropout and start of one encoder; names as of its constructor's."""

    vocab_size: int
    embedding_size: int
    max_positions: int
    num_segments: int
    num_layers: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    dropout: float = 0.1
    attention_dropout: float = 0.1
    initializer_range: float = 0.02

    def __str__(self):
        return (
            f"{self.num_layers} layers x {self.hidden_size}, {self.num_heads} heads, "
            f"feed-forward {self.intermediate_size}, embeddings "
            f"{self.vocab_size} x {self.embedding_size}, {self.max_positions} positions"
        )


def encoder_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Shape of every array of an encoder, by our name for it.

    The projection is there only where E differs from D; query, key and value are one
    kernel [D, 3D] with the columns in this order.
    """
    vocab, width, size = sizes.vocab_size, sizes.embedding_size, sizes.hidden_size
    shapes = {
        f"{EMBEDDINGS}word_embeddings": (vocab, width),
        f"{EMBEDDINGS}position_embeddings": (sizes.max_positions, width),
        f"{EMBEDDINGS}segment_embeddings": (sizes.num_segments, width),
        **_norm_shapes(f"{EMBEDDINGS}layer_norm", width),
    }
    if width != size:
        shapes |= _dense_shapes("embeddings_projection", width, size)
    for index in range(sizes.num_layers):
        layer, wide = f"layer_{index}/", sizes.intermediate_size
        shapes |= {
            **_dense_shapes(f"{layer}qkv", size, 3 * size),
            **_dense_shapes(f"{layer}attention_output", size, size),
            **_norm_shapes(f"{layer}attention_layer_norm", size),
            **_dense_shapes(f"{layer}intermediate", size, wide),
            **_dense_shapes(f"{layer}output", wide, size),
            **_norm_shapes(f"{layer}output_layer_norm", size),
        }
    return shapes


def masked_lm_head_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Shapes of the generator's head; its output matrix is the word table."""
    return {
        **_dense_shapes("dense", sizes.hidden_size, sizes.embedding_size),
        **_norm_shapes("layer_norm", sizes.embedding_size),
        "output_bias": (sizes.vocab_size,),
    }


def replaced_token_head_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Shapes of the discriminator's head."""
    return {
        **_dense_shapes("dense", sizes.hidden_size, sizes.hidden_size),
        **_dense_shapes("prediction", sizes.hidden_size, 1),
    }


def _dense_shapes(name, rows, columns):
    return {f"{name}_kernel": (rows, columns), f"{name}_bias": (columns,)}


def _norm_shapes(name, size):
    return {f"{name}_gamma": (size,), f"{name}_beta": (size,)}


@dataclasses.dataclass(frozen=True)
class Tower:
    """One network: an encoder and, if the source has it, its head.

    Attributes:
        sizes: Of the encoder.
        encoder: float32 arrays, named and shaped as `encoder_shapes` says.
        head: Likewise as of `masked_lm_head_shapes` (generator) or
            `replaced_token_head_shapes` (discriminator); empty if there is none.
    """

    sizes: Sizes
    encoder: Arrays
    head: Arrays

    @property
    def embeddings(self) -> Arrays:
        """The arrays that generator and discriminator share."""
        return {k: v for k, v in self.encoder.items() if k.startswith(EMBEDDINGS)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Imported:
    """A pretrained model, or the part of it that a source holds.

    Attributes:
        format: Name of the format that it was read from.
        source: Where it was read from.
        discriminator: The tower to fine-tune; may lack the head.
        generator: The masked language model, with its head.
        vocabulary: The tokens.
        lower_case: Whether text is lower-cased.
        strip_accents: Whether accents are stripped then.
        trained_length: Positions that were trained.
        not_taken: Names of what the source holds besides, such as task heads.
        notes: What to tell the user: assumptions and warnings.
        run: config.json of the pretraining run; empty if unknown.
        scores: Held-out scores of that run; empty if unknown.

    Raises:
        ValueError: No tower, a generator without head, a tower that is not what its
            sizes say, or towers whose shared embeddings differ.
    """

    format: str
    source: str
    discriminator: Tower | None = None
    generator: Tower | None = None
    vocabulary: Vocabulary | None = None
    lower_case: bool | None = None
    strip_accents: bool | None = None
    trained_length: int | None = None
    not_taken: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    run: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    scores: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        if not self.towers:
            raise ValueError(f"{self.source} holds neither tower of an ELECTRA model.")
        for name, tower in self.towers.items():
            shapes = encoder_shapes(tower.sizes)
            _check_shapes(f"{self.source}: {name}", tower.encoder, shapes)
            if tower.head or name == "generator":
                head_shapes = HEADS[name](tower.sizes)
                _check_shapes(f"{self.source}: {name} head", tower.head, head_shapes)
        if len(self.towers) == 2:
            self._check_shared()

    @property
    def towers(self) -> dict[str, Tower]:
        """The towers that are there, by name, discriminator first."""
        both = {"discriminator": self.discriminator, "generator": self.generator}
        return {name: tower for name, tower in both.items() if tower is not None}

    @property
    def main(self) -> Tower:
        """The tower to fine-tune: the discriminator, or else the generator."""
        return next(iter(self.towers.values()))

    def _check_shared(self):
        ours, theirs = self.discriminator.embeddings, self.generator.embeddings
        different = [
            f"{name} ({_difference(ours[name], theirs[name])})"
            for name in ours
            if not np.array_equal(ours[name], theirs[name])
        ]
        if different:
            raise ValueError(
                f"{self.source}: discriminator and generator do not share their "
                f"embeddings; {', '.join(different)}. Pretraining ties them, so these "
                "are not the two halves of one model (or one trained untied). Import "
                "one of them alone."
            )


HEADS = {
    "discriminator": replaced_token_head_shapes,
    "generator": masked_lm_head_shapes,
}


def _check_shapes(what, arrays, shapes):
    wrong = [
        f"{name}: got {_shape(arrays.get(name))}, needs {_shape(shapes.get(name))}"
        for name in sorted(arrays.keys() | shapes.keys())
        if name not in shapes
        or name not in arrays
        or arrays[name].shape != tuple(shapes[name])
    ]
    if wrong:
        raise ValueError(f"{what} does not fit its sizes: {'; '.join(wrong[:5])}.")


def _shape(value):
    return "nothing" if value is None else list(getattr(value, "shape", value))


def _difference(one, other):
    if one.shape != other.shape:
        return f"{list(one.shape)} and {list(other.shape)}"
    return f"up to {np.abs(one - other).max():.2g} apart"
