"""Array names and shapes of this library, Google's code, Hugging Face and keras-hub."""

import dataclasses
import re
from collections.abc import Iterable, Iterator

import numpy as np

from electra_tf.errors import UserError
from electra_tf.interop.networks import EMBEDDINGS, Arrays, Sizes

# Scopes of the heads in both formats, by tower.
HEAD_SCOPES = {
    "discriminator": "discriminator_predictions",
    "generator": "generator_predictions",
}

_DTYPES = ("float64", "float32", "float16", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Row:
    """Name and shape of an array of this library (``ours``), and its parts' names.

    The arrays of the other format (``theirs``) are concatenated along the columns.
    ``flip`` transposes kernels to [outputs, inputs], as in PyTorch.
    """

    ours: str
    theirs: tuple[str, ...]
    shape: tuple[int, ...] = ()
    flip: bool = False

    @property
    def their_shape(self) -> tuple[int, ...]:
        part = (*self.shape[:-1], self.shape[-1] // len(self.theirs))
        return part[::-1] if self.flip else part

    def join(self, parts: Iterable[np.ndarray]) -> np.ndarray:
        return np.concatenate([p.T if self.flip else p for p in parts], axis=-1)

    def split(self, array: np.ndarray) -> dict[str, np.ndarray]:
        parts = np.split(array, len(self.theirs), axis=-1)
        turned = [np.ascontiguousarray(p.T if self.flip else p) for p in parts]
        return dict(zip(self.theirs, turned, strict=True))


@dataclasses.dataclass(frozen=True)
class Style:
    """Names and kernel orientation of a format.

    ``renamed`` has regular expressions and replacements, applied in this order to the
    names of Google's code. ``flip`` is as in ``Row``.
    """

    renamed: tuple[tuple[str, str], ...]
    flip: bool

    def name(self, google: str) -> str:
        """Returns the format's name for a name of Google's code."""
        for pattern, replacement in self.renamed:
            google = re.sub(pattern, replacement, google)
        return google

    def dense(self, ours: str, shape: tuple[int, int], *google: str) -> list[Row]:
        """Returns the rows of a dense layer, or of several layers fused here."""
        kernels = tuple(self.name(f"{layer}/kernel") for layer in google)
        biases = tuple(self.name(f"{layer}/bias") for layer in google)
        return [
            Row(f"{ours}_kernel", kernels, shape, self.flip),
            Row(f"{ours}_bias", biases, shape[1:]),
        ]

    def norm(self, ours: str, size: int, google: str) -> list[Row]:
        return [
            Row(f"{ours}_{leaf}", (self.name(f"{google}/{leaf}"),), (size,))
            for leaf in ("gamma", "beta")
        ]

    def encoder(
        self, sizes: Sizes, embeddings: str = "", body: str = ""
    ) -> Iterator[Row]:
        """Yields the rows of all arrays of an encoder.

        ``embeddings`` and ``body`` (projection and blocks) are prefixes of their names.
        Query, key and value form one kernel [D, 3D].
        """
        width, size = sizes.embedding_size, sizes.hidden_size
        wide = sizes.intermediate_size
        scope = f"{embeddings}embeddings/"
        for ours, google, count in (
            ("word", "word", sizes.vocab_size),
            ("position", "position", sizes.max_positions),
            ("segment", "token_type", sizes.num_segments),
        ):
            name = self.name(f"{scope}{google}_embeddings")
            yield Row(f"{EMBEDDINGS}{ours}_embeddings", (name,), (count, width))
        yield from self.norm(f"{EMBEDDINGS}layer_norm", width, f"{scope}LayerNorm")
        if width != size:
            projection = f"{body}embeddings_project"
            yield from self.dense("embeddings_projection", (width, size), projection)
        for index in range(sizes.num_layers):
            ours, block = f"layer_{index}/", f"{body}encoder/layer_{index}/"
            qkv = [f"{block}attention/self/{x}" for x in ("query", "key", "value")]
            after, inner = f"{block}attention/output/", f"{block}intermediate/dense"
            outer = f"{block}output/"
            yield from self.dense(f"{ours}qkv", (size, 3 * size), *qkv)
            own = f"{ours}attention_output"
            yield from self.dense(own, (size, size), f"{after}dense")
            own = f"{ours}attention_layer_norm"
            yield from self.norm(own, size, f"{after}LayerNorm")
            yield from self.dense(f"{ours}intermediate", (size, wide), inner)
            yield from self.dense(f"{ours}output", (wide, size), f"{outer}dense")
            yield from self.norm(f"{ours}output_layer_norm", size, f"{outer}LayerNorm")

    def head(self, role: str, sizes: Sizes) -> list[Row]:
        """Returns the rows of a head, without the generator's tied output matrix."""
        scope = f"{HEAD_SCOPES[role]}/"
        width, size = sizes.embedding_size, sizes.hidden_size
        if role == "discriminator":
            return [
                *self.dense("dense", (size, size), f"{scope}dense"),
                *self.dense("prediction", (size, 1), f"{scope}dense_1"),
            ]
        bias = self.name(f"{scope}output_bias")
        return [
            *self.dense("dense", (size, width), f"{scope}dense"),
            *self.norm("layer_norm", width, f"{scope}LayerNorm"),
            Row("output_bias", (bias,), (sizes.vocab_size,)),
        ]


GOOGLE_TF1 = Style(renamed=(), flip=False)
HUGGING_FACE = Style(
    renamed=(
        ("_embeddings$", "_embeddings/weight"),
        ("/(kernel|gamma)$", "/weight"),
        ("/beta$", "/bias"),
        ("/layer_", "/layer/"),
        ("/dense_1/", "/dense_prediction/"),
        ("generator_predictions/output_bias", "generator_lm_head/bias"),
        ("/", "."),
    ),
    flip=True,
)


def scatter(rows: Iterable[Row], arrays: Arrays) -> dict[str, np.ndarray]:
    """Renames our arrays to theirs; raises ValueError if an array lacks a row."""
    rows = list(rows)
    if unknown := sorted(arrays.keys() - {row.ours for row in rows}):
        raise UserError(f"The format has no place for {', '.join(unknown[:5])}.")
    return {
        name: part for row in rows for name, part in row.split(arrays[row.ours]).items()
    }


class Tensors(dict[str, np.ndarray]):
    """The arrays of a source by name; ``left`` has the names that were not taken."""

    def __init__(self, arrays: Arrays, source: str):
        super().__init__(arrays)
        self.source, self.left = source, set(arrays)

    def starting_with(self, prefix: str) -> bool:
        return any(name.startswith(prefix) for name in self)

    def take(self, name: str) -> np.ndarray:
        """Returns one array as float32."""
        if name not in self:
            raise UserError(f"{self.source} has no tensor {name}: it is incomplete.")
        self.left.discard(name)
        if (kind := self[name].dtype.name) not in _DTYPES:
            raise UserError(
                f"{self.source} may be quantized: {name} has the type {kind}; allowed "
                f"are {', '.join(_DTYPES)}."
            )
        return self[name].astype(np.float32)

    def read(self, rows: Iterable[Row]) -> dict[str, np.ndarray]:
        """Returns our arrays of the rows."""
        ours = {}
        for row in rows:
            parts = [self.take(name) for name in row.theirs]
            for name, part in zip(row.theirs, parts, strict=True):
                if part.shape != row.their_shape:
                    raise UserError(
                        f"{self.source}: {name} has the shape {list(part.shape)}, not "
                        f"{list(row.their_shape)}."
                    )
            ours[row.ours] = row.join(parts)
        return ours
