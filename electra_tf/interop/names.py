"""Maps tensor names of Google's TensorFlow 1 code and Hugging Face to ours.

Both use the same module names. They differ in the separator, the leaf names and the
orientation of kernels, which a ``Style`` describes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator

import numpy as np

from electra_tf.errors import UserError
from electra_tf.interop.imported import EMBEDDINGS, Arrays, Shapes, Sizes

# Scopes of the heads in both formats, by tower.
HEAD_SCOPES = {
    "discriminator": "discriminator_predictions",
    "generator": "generator_predictions",
}


@dataclasses.dataclass(frozen=True)
class Row:
    """The name of an array here, and of the arrays that hold it elsewhere.

    Several arrays are concatenated along the columns. ``flip`` transposes kernels to
    [outputs, inputs], as in PyTorch.
    """

    ours: str
    theirs: tuple[str, ...]
    flip: bool = False

    def join(self, parts: Iterable[np.ndarray]) -> np.ndarray:
        """Concatenates their arrays to ours."""
        return np.concatenate([p.T if self.flip else p for p in parts], axis=-1)

    def split(self, array: np.ndarray) -> dict[str, np.ndarray]:
        """Splits our array into theirs."""
        parts = np.split(array, len(self.theirs), axis=-1)
        turned = [np.ascontiguousarray(p.T if self.flip else p) for p in parts]
        return dict(zip(self.theirs, turned, strict=True))

    def their_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of each of their arrays, given the shape of ours."""
        part = (*shape[:-1], shape[-1] // len(self.theirs))
        return part[::-1] if self.flip else part


@dataclasses.dataclass(frozen=True)
class Style:
    """Names and kernel orientation of a format.

    ``kernel``, ``gamma`` and ``beta`` are leaf names; a bias is always "bias".
    ``table`` is the suffix of embedding tables. ``layer`` is the path of a Transformer
    block, with {} for its index. ``flip`` as in ``Row``.
    """

    separator: str
    kernel: str
    gamma: str
    beta: str
    table: str
    layer: str
    flip: bool

    def dense(self, ours: str, *theirs: str) -> list[Row]:
        """Returns the rows of a dense layer, or of several that are one layer here."""
        return [
            Row(f"{ours}_kernel", self._paths(theirs, self.kernel), self.flip),
            Row(f"{ours}_bias", self._paths(theirs, "bias")),
        ]

    def norm(self, ours: str, theirs: str) -> list[Row]:
        """Returns the rows of a LayerNorm."""
        return [
            Row(f"{ours}_gamma", self._paths([theirs], self.gamma)),
            Row(f"{ours}_beta", self._paths([theirs], self.beta)),
        ]

    def _paths(self, modules: Iterable[str], leaf: str) -> tuple[str, ...]:
        return tuple(f"{m}/{leaf}".replace("/", self.separator) for m in modules)

    def embeddings(self) -> list[Row]:
        """Returns the rows of the three tables and their LayerNorm."""
        tables = {"word": "word", "position": "position", "segment": "token_type"}
        start, end = f"embeddings{self.separator}", f"_embeddings{self.table}"
        rows = [
            Row(f"{EMBEDDINGS}{ours}_embeddings", (f"{start}{theirs}{end}",))
            for ours, theirs in tables.items()
        ]
        return rows + self.norm(f"{EMBEDDINGS}layer_norm", "embeddings/LayerNorm")

    def body(self, sizes: Sizes) -> list[Row]:
        """Returns the rows of the projection, if the widths differ, and the blocks."""
        rows = []
        if sizes.embedding_size != sizes.hidden_size:
            rows += self.dense("embeddings_projection", "embeddings_project")
        for index in range(sizes.num_layers):
            ours, theirs = f"layer_{index}/", self.layer.format(index) + "/"
            parts = [f"{theirs}attention/self/{x}" for x in ("query", "key", "value")]
            output = f"{theirs}attention/output/"
            rows += [
                *self.dense(f"{ours}qkv", *parts),
                *self.dense(f"{ours}attention_output", f"{output}dense"),
                *self.norm(f"{ours}attention_layer_norm", f"{output}LayerNorm"),
                *self.dense(f"{ours}intermediate", f"{theirs}intermediate/dense"),
                *self.dense(f"{ours}output", f"{theirs}output/dense"),
                *self.norm(f"{ours}output_layer_norm", f"{theirs}output/LayerNorm"),
            ]
        return rows

    def heads(self, prediction: str, output_bias: str) -> dict[str, list[Row]]:
        """Returns the rows of both heads, by tower.

        ``prediction`` is the last layer of the discriminator's head, ``output_bias``
        the generator's bias per token.
        """
        replaced, masked = (f"{scope}/" for scope in HEAD_SCOPES.values())
        return {
            "discriminator": [
                *self.dense("dense", f"{replaced}dense"),
                *self.dense("prediction", f"{replaced}{prediction}"),
            ],
            "generator": [
                *self.dense("dense", f"{masked}dense"),
                *self.norm("layer_norm", f"{masked}LayerNorm"),
                Row("output_bias", (output_bias,)),
            ],
        }


HUGGING_FACE = Style(
    ".", "weight", "weight", "bias", ".weight", "encoder/layer/{}", True
)
GOOGLE_TF1 = Style("/", "kernel", "gamma", "beta", "", "encoder/layer_{}", False)


def prefixed(rows: Iterable[Row], prefix: str) -> list[Row]:
    """Adds ``prefix`` to all tensor names of the rows."""
    return [
        dataclasses.replace(row, theirs=tuple(prefix + name for name in row.theirs))
        for row in rows
    ]


def encoder_rows(style: Style, sizes: Sizes, embeddings: str, body: str) -> list[Row]:
    """Returns the rows of all arrays of an encoder.

    Here and below, ``embeddings`` and ``body`` (projection, blocks) are name prefixes.
    """
    return prefixed(style.embeddings(), embeddings) + prefixed(style.body(sizes), body)


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
                f"{self._source} has no tensor {name}: it is not an ELECTRA model of "
                "this layout, or not all of it."
            )
        self._left.discard(name)
        array = np.asarray(self._arrays[name]).astype(np.float32)
        if not np.isfinite(array).all():
            raise UserError(f"{self._source}: {name} has values that are not finite.")
        return array

    def read(self, rows: Iterable[Row], shapes: Shapes) -> dict[str, np.ndarray]:
        """Returns our arrays of the given shapes."""
        ours = {}
        for row in rows:
            needed = row.their_shape(tuple(shapes[row.ours]))
            parts = [self.get(name) for name in row.theirs]
            for name, part in zip(row.theirs, parts, strict=True):
                if part.shape != needed:
                    raise UserError(
                        f"{self._source}: {name} has the shape {list(part.shape)}, but "
                        f"the other tensors need {list(needed)}."
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

        ``rates`` are dropout rates and the initializer range. ``num_heads`` of None is
        the original's rule, hidden size // 64 and at least 1.
        """
        inferred: dict[str, int] = {}
        for row, names in size_rows(style, embeddings, body):
            (name,) = row.theirs
            shape = self.get(name).shape
            if len(shape) != 2:
                raise UserError(
                    f"{self._source}: {name} has the shape {list(shape)}, not two axes."
                )
            inferred |= zip(names, shape[::-1] if row.flip else shape, strict=False)
        hidden_size = inferred["hidden_size"]
        heads = max(1, hidden_size // 64) if num_heads is None else num_heads
        if heads < 1 or hidden_size % heads:
            raise UserError(
                f"{self._source}: hidden size {hidden_size} is not divisible by "
                f"num_heads {heads}."
            )
        if wrong := {name: rate for name, rate in rates.items() if not 0 <= rate < 1}:
            raise UserError(f"{self._source}: not in [0, 1): {wrong}.")
        # At least one, so that the error for a source without blocks names a tensor.
        layers = max(1, count_layers(style, body, self._arrays))
        return Sizes(**inferred, num_layers=layers, num_heads=heads, **rates)


def size_rows(
    style: Style, embeddings: str, body: str
) -> Iterator[tuple[Row, tuple[str, ...]]]:
    """Yields the arrays that determine sizes, with the names of their axes."""
    words, positions, segments = prefixed(style.embeddings()[:3], embeddings)
    yield words, ("vocab_size", "embedding_size")
    yield positions, ("max_positions",)
    yield segments, ("num_segments",)
    # The first feed-forward kernel of the first block.
    layer = style.layer.format(0)
    wide, _ = style.dense("layer_0/intermediate", f"{layer}/intermediate/dense")
    yield prefixed([wide], body)[0], ("hidden_size", "intermediate_size")


def count_layers(style: Style, body: str, names: Iterable[str]) -> int:
    """Counts the Transformer blocks in the names of all tensors.

    Raises ValueError if a block's index is not below the number of tensors.
    """
    names = tuple(names)
    path = style.layer.replace("/", style.separator)
    pattern = re.escape(body + path).replace(r"\{\}", r"(\d{1,9})") + r"\D"
    matches = filter(None, (re.match(pattern, name) for name in names))
    last, name = max(((int(match[1]), match[0]) for match in matches), default=(-1, ""))
    if last >= len(names):
        raise UserError(f"{name} is the last block, but there are {len(names)} tensors")
    return last + 1
