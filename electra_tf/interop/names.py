"""Names and shapes of arrays here, in Google's TensorFlow 1 code and Hugging Face.

Both use the same module names. They differ in the separator, the leaf names and the
orientation of kernels, which a ``Style`` describes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

import numpy as np

from electra_tf.errors import UserError
from electra_tf.interop.networks import EMBEDDINGS, Arrays, Sizes

# Scopes of the heads in both formats, by tower.
HEAD_SCOPES = {
    "discriminator": "discriminator_predictions",
    "generator": "generator_predictions",
}


@dataclasses.dataclass(frozen=True)
class Row:
    """The name and shape of an array here, and the arrays that hold it elsewhere.

    Several arrays are concatenated along the columns. ``flip`` transposes kernels to
    [outputs, inputs], as in PyTorch.
    """

    ours: str
    theirs: tuple[str, ...]
    shape: tuple[int, ...] = ()
    flip: bool = False

    @property
    def their_shape(self) -> tuple[int, ...]:
        """The shape of each of their arrays."""
        part = (*self.shape[:-1], self.shape[-1] // len(self.theirs))
        return part[::-1] if self.flip else part

    def join(self, parts: Iterable[np.ndarray]) -> np.ndarray:
        """Concatenates their arrays to ours."""
        return np.concatenate([p.T if self.flip else p for p in parts], axis=-1)

    def split(self, array: np.ndarray) -> dict[str, np.ndarray]:
        """Splits our array into theirs."""
        parts = np.split(array, len(self.theirs), axis=-1)
        turned = [np.ascontiguousarray(p.T if self.flip else p) for p in parts]
        return dict(zip(self.theirs, turned, strict=True))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Style:
    """Names and kernel orientation of a format.

    ``kernel``, ``gamma`` and ``beta`` are leaf names; a bias is always "bias".
    ``suffix`` ends the names of embedding tables. ``layer`` is the path of a
    Transformer block, with {} for its index. ``prediction`` is the last layer of the
    discriminator's head, ``output_bias`` the generator's bias per token. ``flip`` as in
    ``Row``.
    """

    separator: str
    kernel: str
    gamma: str
    beta: str
    suffix: str
    layer: str
    prediction: str
    output_bias: str
    flip: bool

    def table(self, name: str) -> str:
        """Returns the name of an embedding table."""
        return f"embeddings{self.separator}{name}_embeddings{self.suffix}"

    def dense(self, ours: str, shape: tuple[int, int], *theirs: str) -> list[Row]:
        """Returns the rows of a dense layer, or of several layers fused here."""
        return [
            Row(f"{ours}_kernel", self._paths(theirs, self.kernel), shape, self.flip),
            Row(f"{ours}_bias", self._paths(theirs, "bias"), shape[1:]),
        ]

    def norm(self, ours: str, size: int, theirs: str) -> list[Row]:
        """Returns the rows of a LayerNorm."""
        return [
            Row(f"{ours}_gamma", self._paths([theirs], self.gamma), (size,)),
            Row(f"{ours}_beta", self._paths([theirs], self.beta), (size,)),
        ]

    def _paths(self, modules: Iterable[str], leaf: str) -> tuple[str, ...]:
        return tuple(f"{m}/{leaf}".replace("/", self.separator) for m in modules)

    def encoder(self, sizes: Sizes, embeddings: str = "", body: str = "") -> list[Row]:
        """Returns the rows of all arrays of an encoder.

        Here and below, ``embeddings`` and ``body`` (projection, blocks) are prefixes of
        their names. There is a projection only if the widths differ. Query, key and
        value form one kernel [D, 3D], for one matrix product instead of three.
        """
        width, size = sizes.embedding_size, sizes.hidden_size
        wide = sizes.intermediate_size
        rows = [
            Row(f"{EMBEDDINGS}{ours}_embeddings", (embeddings + name,), (count, width))
            for ours, name, count in (
                ("word", self.table("word"), sizes.vocab_size),
                ("position", self.table("position"), sizes.max_positions),
                ("segment", self.table("token_type"), sizes.num_segments),
            )
        ]
        norm = f"{embeddings}embeddings/LayerNorm"
        rows += self.norm(f"{EMBEDDINGS}layer_norm", width, norm)
        if width != size:
            projection = f"{body}embeddings_project"
            rows += self.dense("embeddings_projection", (width, size), projection)
        for index in range(sizes.num_layers):
            ours, theirs = f"layer_{index}/", f"{body}{self.layer.format(index)}/"
            qkv = [f"{theirs}attention/self/{x}" for x in ("query", "key", "value")]
            after, inner = f"{theirs}attention/output/", f"{theirs}intermediate/dense"
            outer = f"{theirs}output/"
            rows += [
                *self.dense(f"{ours}qkv", (size, 3 * size), *qkv),
                *self.dense(f"{ours}attention_output", (size, size), f"{after}dense"),
                *self.norm(f"{ours}attention_layer_norm", size, f"{after}LayerNorm"),
                *self.dense(f"{ours}intermediate", (size, wide), inner),
                *self.dense(f"{ours}output", (wide, size), f"{outer}dense"),
                *self.norm(f"{ours}output_layer_norm", size, f"{outer}LayerNorm"),
            ]
        return rows

    def head(self, role: str, sizes: Sizes) -> list[Row]:
        """Returns the rows of a tower's head.

        The generator's output matrix is the word table.
        """
        scope = f"{HEAD_SCOPES[role]}/"
        width, size = sizes.embedding_size, sizes.hidden_size
        if role == "discriminator":
            return [
                *self.dense("dense", (size, size), f"{scope}dense"),
                *self.dense("prediction", (size, 1), f"{scope}{self.prediction}"),
            ]
        return [
            *self.dense("dense", (size, width), f"{scope}dense"),
            *self.norm("layer_norm", width, f"{scope}LayerNorm"),
            Row("output_bias", (self.output_bias,), (sizes.vocab_size,)),
        ]


HUGGING_FACE = Style(
    separator=".",
    kernel="weight",
    gamma="weight",
    beta="bias",
    suffix=".weight",
    layer="encoder/layer/{}",
    prediction="dense_prediction",
    output_bias="generator_lm_head.bias",
    flip=True,
)
GOOGLE_TF1 = Style(
    separator="/",
    kernel="kernel",
    gamma="gamma",
    beta="beta",
    suffix="",
    layer="encoder/layer_{}",
    prediction="dense_1",
    output_bias="generator_predictions/output_bias",
    flip=False,
)


def scatter(rows: Iterable[Row], arrays: Arrays) -> dict[str, np.ndarray]:
    """Renames our arrays to theirs; raises ValueError if an array has no row."""
    rows = list(rows)
    homeless = sorted(arrays.keys() - {row.ours for row in rows})
    if homeless:
        raise UserError(f"The format has no place for {', '.join(homeless[:5])}.")
    return {
        name: part for row in rows for name, part in row.split(arrays[row.ours]).items()
    }


class Tensors:
    """The named arrays of a source; tracks the arrays that were not read.

    Arrays may have any floating dtype. Methods raise ValueError, with the name
    ``source``, for arrays that are missing, of the wrong shape or not finite.
    """

    def __init__(self, arrays: Arrays, source: str):
        self._arrays = dict(arrays)
        self._left = set(self._arrays)
        self._source = source

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    @property
    def left(self) -> list[str]:
        """Names of the arrays that were not read."""
        return sorted(self._left)

    def starting_with(self, prefix: str) -> bool:
        """Whether any name starts with the prefix."""
        return any(name.startswith(prefix) for name in self._arrays)

    def get(self, name: str) -> np.ndarray:
        """Returns one array as float32."""
        if name not in self._arrays:
            raise UserError(
                f"{self._source} has no tensor {name}: it is not a complete ELECTRA "
                "model of this layout."
            )
        self._left.discard(name)
        array = np.asarray(self._arrays[name]).astype(np.float32)
        if not np.isfinite(array).all():
            raise UserError(f"{self._source}: {name} has values that are not finite.")
        return array

    def read(self, rows: Iterable[Row]) -> dict[str, np.ndarray]:
        """Returns our arrays of the rows."""
        ours = {}
        for row in rows:
            parts = [self.get(name) for name in row.theirs]
            for name, part in zip(row.theirs, parts, strict=True):
                if part.shape != row.their_shape:
                    raise UserError(
                        f"{self._source}: {name} has the shape {list(part.shape)}, but "
                        f"the other tensors need {list(row.their_shape)}."
                    )
            ours[row.ours] = row.join(parts)
        return ours

    def sizes(
        self,
        style: Style,
        *,
        embeddings: str,
        body: str,
        num_heads: int | None = None,
        **rates: float,
    ) -> Sizes:
        """Infers the sizes of an encoder from tensor shapes.

        ``rates`` are dropout rates and the initializer range. ``num_heads=None`` means
        the original's rule, hidden size // 64 and at least 1.
        """
        words, positions, segments = (
            self._matrix(embeddings + style.table(name))
            for name in ("word", "position", "token_type")
        )
        # The first feed-forward kernel of the first block.
        inner = f"{body}{style.layer.format(0)}/intermediate/dense"
        wide = self._matrix(style.dense("", (0, 0), inner)[0].theirs[0])
        hidden_size, intermediate_size = wide[::-1] if style.flip else wide
        heads = max(1, hidden_size // 64) if num_heads is None else num_heads
        if heads < 1 or hidden_size % heads:
            raise UserError(
                f"{self._source}: hidden size {hidden_size} is not divisible by "
                f"num_heads {heads}."
            )
        if wrong := {name: rate for name, rate in rates.items() if not 0 <= rate < 1}:
            raise UserError(f"{self._source}: not in [0, 1): {wrong}.")
        return Sizes(
            vocab_size=words[0],
            embedding_size=words[1],
            max_positions=positions[0],
            num_segments=segments[0],
            num_layers=self._count_layers(style, body),
            hidden_size=hidden_size,
            num_heads=heads,
            intermediate_size=intermediate_size,
            **rates,
        )

    def _matrix(self, name: str) -> tuple[int, int]:
        shape = self.get(name).shape
        if len(shape) != 2:
            raise UserError(
                f"{self._source}: {name} has the shape {list(shape)}, not two axes."
            )
        return shape

    def _count_layers(self, style: Style, body: str) -> int:
        path = style.layer.replace("/", style.separator)
        pattern = re.escape(body + path).replace(r"\{\}", r"(\d{1,9})") + r"\D"
        matches = filter(None, (re.match(pattern, name) for name in self._arrays))
        last = max(int(match[1]) for match in matches)
        if last >= len(self._arrays):
            raise UserError(
                f"{self._source}: block {last} is the last of {len(self._arrays)} "
                "tensors."
            )
        return last + 1
