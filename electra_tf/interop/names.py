"""Names of BERT's and ELECTRA's tensors elsewhere, and the way to ours and back.

The TensorFlow 1 code and Hugging Face call the same modules by the same names; they
differ in the separator, in what the leaves are called, and in which way kernels lie.
So there is one table of modules, and a `Style` per format.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

import numpy as np

from electra_tf.interop.imported import EMBEDDINGS, Arrays, Sizes

Shapes = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Row:
    """One array of ours and what holds it elsewhere.

    Attributes:
        ours: Our name.
        theirs: Their names; of several, the columns are joined in this order.
        flip: Whether their kernels lie the other way, [outputs, inputs].
    """

    ours: str
    theirs: tuple[str, ...]
    flip: bool = False

    def join(self, parts: Iterable[np.ndarray]) -> np.ndarray:
        """Our array from theirs."""
        return np.concatenate([self._turned(part) for part in parts], axis=-1)

    def split(self, array: np.ndarray) -> dict[str, np.ndarray]:
        """Their arrays from ours."""
        parts = np.split(array, len(self.theirs), axis=-1)
        turned = (np.ascontiguousarray(self._turned(part)) for part in parts)
        return dict(zip(self.theirs, turned, strict=True))

    def their_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of each of theirs, given that of ours."""
        part = (*shape[:-1], shape[-1] // len(self.theirs))
        return part[::-1] if self.flip else part

    def _turned(self, array):
        return array.T if self.flip else array


@dataclasses.dataclass(frozen=True)
class Style:
    """How a format writes the names of the modules.

    Attributes:
        separator: Between the parts of a path.
        kernel: Leaf of a dense layer's kernel; the bias is "bias" everywhere.
        gamma: Leaf of a LayerNorm's scale.
        beta: Leaf of a LayerNorm's shift.
        table: What follows the path of an embedding table.
        layer: Path of a Transformer block, with {} for its number.
        flip: Whether kernels are stored as [outputs, inputs].
    """

    separator: str
    kernel: str
    gamma: str
    beta: str
    table: str
    layer: str
    flip: bool

    def dense(self, ours: str, *theirs: str) -> list[Row]:
        """Kernel and bias of a dense layer, or of several that are one of ours."""
        return [
            Row(f"{ours}_kernel", self._paths(theirs, self.kernel), self.flip),
            Row(f"{ours}_bias", self._paths(theirs, "bias")),
        ]

    def norm(self, ours: str, theirs: str) -> list[Row]:
        """Scale and shift of a LayerNorm."""
        return [
            Row(f"{ours}_gamma", self._paths([theirs], self.gamma)),
            Row(f"{ours}_beta", self._paths([theirs], self.beta)),
        ]

    def _paths(self, modules, leaf):
        return tuple(f"{m}/{leaf}".replace("/", self.separator) for m in modules)

    def embeddings(self) -> list[Row]:
        """The three tables and their LayerNorm."""
        tables = {
            "word_embeddings": "word_embeddings",
            "position_embeddings": "position_embeddings",
            "segment_embeddings": "token_type_embeddings",
        }
        return [
            *(
                Row(EMBEDDINGS + ours, (self._table(theirs),))
                for ours, theirs in tables.items()
            ),
            *self.norm(f"{EMBEDDINGS}layer_norm", "embeddings/LayerNorm"),
        ]

    def _table(self, name):
        return f"embeddings{self.separator}{name}{self.table}"

    def body(self, sizes: Sizes) -> list[Row]:
        """The projection, where the widths differ, and the blocks."""
        rows = []
        if sizes.embedding_size != sizes.hidden_size:
            rows += self.dense("embeddings_projection", "embeddings_project")
        for index in range(sizes.num_layers):
            ours, theirs = f"layer_{index}/", self.layer.format(index) + "/"
            attention = f"{theirs}attention/"
            rows += [
                *self.dense(
                    f"{ours}qkv",
                    *(f"{attention}self/{part}" for part in ("query", "key", "value")),
                ),
                *self.dense(f"{ours}attention_output", f"{attention}output/dense"),
                *self.norm(
                    f"{ours}attention_layer_norm", f"{attention}output/LayerNorm"
                ),
                *self.dense(f"{ours}intermediate", f"{theirs}intermediate/dense"),
                *self.dense(f"{ours}output", f"{theirs}output/dense"),
                *self.norm(f"{ours}output_layer_norm", f"{theirs}output/LayerNorm"),
            ]
        return rows

    def heads(self, prediction: str, output_bias: str) -> dict[str, list[Row]]:
        """Rows of both heads, by tower.

        Args:
            prediction: Last layer of the discriminator's head.
            output_bias: The generator's bias per token.
        """
        replaced, masked = "discriminator_predictions/", "generator_predictions/"
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
    """The rows, with `prefix` before all of their names."""
    return [
        dataclasses.replace(row, theirs=tuple(prefix + name for name in row.theirs))
        for row in rows
    ]


def scatter(rows: Iterable[Row], arrays: Arrays) -> dict[str, np.ndarray]:
    """Our arrays under their names; every one of ours must have a row.

    Raises:
        ValueError: An array has no row: the format cannot hold it.
    """
    rows = list(rows)
    homeless = sorted(arrays.keys() - {row.ours for row in rows})
    if homeless:
        raise ValueError(f"The format has no place for {', '.join(homeless[:5])}.")
    return {
        name: part for row in rows for name, part in row.split(arrays[row.ours]).items()
    }


class Tensors:
    """The named arrays of a source; what is not taken in the end is known by name.

    Args:
        arrays: Array of each name, of any floating dtype.
        source: What to call the source in errors.
    """

    def __init__(self, arrays: Arrays, source: str):
        self._arrays = dict(arrays)
        self._left = set(self._arrays)
        self._source = source

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    @property
    def left(self) -> list[str]:
        """Names that nothing has taken."""
        return sorted(self._left)

    def starting_with(self, prefix: str) -> bool:
        """Whether any name begins so."""
        return any(name.startswith(prefix) for name in self._arrays)

    def get(self, name: str) -> np.ndarray:
        """One array as float32, taken.

        Raises:
            ValueError: It is missing or not finite.
        """
        if name not in self._arrays:
            raise ValueError(
                f"{self._source} has no tensor {name}: it is not an ELECTRA model of "
                "this layout, or not all of it."
            )
        self._left.discard(name)
        array = np.asarray(self._arrays[name]).astype(np.float32)
        if not np.isfinite(array).all():
            raise ValueError(f"{self._source}: {name} has values that are not finite.")
        return array

    def read(self, rows: Iterable[Row], shapes: Shapes) -> dict[str, np.ndarray]:
        """Our arrays, of the shapes that they must have.

        Raises:
            ValueError: An array is missing, or has another shape.
        """
        found = {}
        for row in rows:
            wanted = row.their_shape(tuple(shapes[row.ours]))
            parts = [self.get(name) for name in row.theirs]
            for name, part in zip(row.theirs, parts, strict=True):
                if part.shape != wanted:
                    raise ValueError(
                        f"{self._source}: {name} has the shape {list(part.shape)}, but "
                        f"the other tensors ask for {list(wanted)}."
                    )
            found[row.ours] = row.join(parts)
        return found

    def sizes(
        self,
        style: Style,
        *,
        embeddings: str,
        body: str,
        num_heads: int | None = None,
        **rates: float,
    ) -> Sizes:
        """Sizes of an encoder, from the shapes of its tensors.

        Args:
            style: Of the names.
            embeddings: What stands before the names of the embeddings.
            body: What stands before the names of projection and blocks.
            num_heads: Which no shape tells; None is the original's rule, hidden
                size // 64 and at least 1.
            **rates: dropout, attention_dropout and initializer_range, if known.

        Raises:
            ValueError: A tensor that tells a size is missing.
        """
        tables = [
            self._shape(name)
            for row in prefixed(style.embeddings()[:3], embeddings)
            for name in row.theirs
        ]
        words, positions, segments = tables
        layers = self._count_layers(style, body)
        one = Sizes(
            vocab_size=words[0],
            embedding_size=words[1],
            max_positions=positions[0],
            num_segments=segments[0],
            num_layers=layers,
            hidden_size=0,
            num_heads=1,
            intermediate_size=0,
            **rates,
        )
        rows = {row.ours: row for row in prefixed(style.body(one), body)}
        wide = rows["layer_0/intermediate_kernel"]
        size, wide = self._shape(wide.theirs[0])[:: -1 if wide.flip else 1]
        return dataclasses.replace(
            one,
            hidden_size=size,
            num_heads=num_heads or max(1, size // 64),
            intermediate_size=wide,
        )

    def _shape(self, name):
        shape = self.get(name).shape
        if len(shape) != 2:
            raise ValueError(
                f"{self._source}: {name} has the shape {list(shape)}, not two axes."
            )
        return shape

    def _count_layers(self, style, body):
        path = style.layer.replace("/", style.separator)
        pattern = re.escape(body + path).replace(r"\{\}", r"(\d+)") + r"\D"
        found = [re.match(pattern, name) for name in self._arrays]
        # At least one, so that a source without blocks is told what it lacks.
        return 1 + max((int(match[1]) for match in found if match), default=0)
