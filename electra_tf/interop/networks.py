"""The common representation of all checkpoint formats, and its Keras models.

A format is a module in the table ``FORMATS`` of ``electra_tf.interop.convert`` with

    OUTPUTS               paths of all files that ``write`` may leave in a folder
    detect(source)        whether this format can read a ``Source``
    read(source)          returns an ``Imported``; missing facts are None
    write(folder, model)  writes into an empty folder; returns notes on omissions

Functions raise ValueError for damaged sources and models that a format cannot hold, and
OSError for files that are missing or cannot be written.

Letters: C outputs, D hidden size.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from electra_tf.data.vocabulary import Vocabulary
from electra_tf.errors import UserError
from electra_tf.folders.cards import text_lines
from electra_tf.layers import TextEmbedding
from electra_tf.layers.encoder import TextEncoder
from electra_tf.layers.quantization import modes
from electra_tf.pretraining import (
    MaskedLM,
    ReplacedTokenDetection,
    ReplacedTokenDetector,
)

Arrays = Mapping[str, np.ndarray]

EMBEDDINGS = "embeddings/"
_EPSILON = 1e-12  # The default of embeddings and encoder.
# Fields of `Sizes` by the layer with this argument; embedding_size is called `size`.
_OF_ENCODER = (
    *("num_layers", "hidden_size", "num_heads", "intermediate_size"),
    *("dropout", "attention_dropout", "initializer_range"),
)
_OF_EMBEDDINGS = ("vocab_size", "max_positions", "num_segments")


@dataclasses.dataclass(frozen=True)
class Source:
    """A folder, file or hub name to read, and its flags of ``convert``.

    ``num_heads`` applies to the discriminator, or to a generator without one.
    """

    path: str
    generator: str | None = None
    num_heads: int | None = None
    only: str | None = None
    pair: bool | None = None

    def reject(self, *names: str) -> None:
        """Raises ValueError if flags are set that a format does not use."""
        given = [f"--{name}" for name in names if getattr(self, name) is not None]
        if given:
            flags = " and ".join(given)
            raise UserError(f"{self.path} does not need {flags}: leave it out.")

    def selected(self, towers: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the towers, or the ``only`` one."""
        if self.only and self.only not in towers:
            raise UserError(f"{self.path} has no {self.only}.")
        return {role: x for role, x in towers.items() if self.only in (None, role)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes, dropout and initializer of an encoder, named as its arguments."""

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

    def check(self, source: str) -> None:
        """Raises ValueError for invalid numbers of heads and rates."""
        if self.num_heads < 1 or self.hidden_size % self.num_heads:
            raise UserError(
                f"{source}: hidden size {self.hidden_size} is not divisible by "
                f"num_heads {self.num_heads}."
            )
        for name in ("dropout", "attention_dropout", "initializer_range"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(
                    f"{source}: {name} is {getattr(self, name)}, not in [0, 1)."
                )

    def __str__(self) -> str:
        return (
            f"{self.num_layers} layers x {self.hidden_size}, {self.num_heads} heads, "
            f"feed-forward {self.intermediate_size}, embeddings "
            f"{self.vocab_size} x {self.embedding_size}, {self.max_positions} positions"
        )


@dataclasses.dataclass(frozen=True)
class Tower:
    """Float32 arrays of encoder and head ({} for none), named as in ``names.Style``."""

    sizes: Sizes
    encoder: Arrays
    head: Arrays


@dataclasses.dataclass(frozen=True)
class TaskHead:
    """The head of a fine-tuned model and its settings.

    Attributes:
        kind: as in task.json.
        labels: in the order of the outputs; empty for regression and spans.
        arrays: float32 output_kernel [D, C] and output_bias [C]. C is 1 for regression,
            and 2 for spans. hidden_kernel [D, D] and hidden_bias [D] add a GELU layer.
        dropout: rate before the linear layer.
        options: entries of task.json from the source.
    """

    kind: str
    labels: tuple[str, ...]
    arrays: Arrays
    dropout: float = 0.1
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Imported:
    """A pretrained model, one of its towers, or a fine-tuned model.

    Attributes:
        not_taken: names of arrays that were not read, such as task heads.
        notes: assumptions and warnings for the user.
        run: config.json of the pretraining run.
        facts: sections of the run's model card.
        recipe: recommended fine-tuning flags, from the encoder's folder.
        task: head of a fine-tuned model; the discriminator then has no head.

    Raises ValueError if both towers are missing, or if their embeddings differ.
    """

    format: str
    source: str
    discriminator: Tower | None = None  # May lack the head.
    generator: Tower | None = None
    vocabulary: Vocabulary | None = None
    lower_case: bool | None = None
    strip_accents: bool | None = None
    trained_length: int | None = None
    not_taken: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    float16: bool = False
    run: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    facts: str = ""
    recipe: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    task: TaskHead | None = None

    def __post_init__(self) -> None:
        if not self.towers:
            raise UserError(f"{self.source} has no discriminator and no generator.")
        if len(self.towers) < 2:
            return
        ours, theirs = self.discriminator.encoder, self.generator.encoder
        equal = functools.partial(np.array_equal, equal_nan=True)
        tables = [name for name in ours if name.startswith(EMBEDDINGS)]
        different = [n for n in tables if not equal(ours[n], theirs.get(n))]
        if different:
            raise UserError(
                f"{self.source}: discriminator and generator do not share their "
                f"embeddings; {', '.join(different)} differ: import one of them alone."
            )

    @property
    def towers(self) -> dict[str, Tower]:
        """The towers by name, discriminator first."""
        both = {"discriminator": self.discriminator, "generator": self.generator}
        return {name: tower for name, tower in both.items() if tower is not None}

    @property
    def main(self) -> Tower:
        """The tower to fine-tune: the discriminator, or else the generator."""
        return next(iter(self.towers.values()))


def about(model: Imported, folders: Mapping[str, str] | None = None) -> list[str]:
    """Returns Markdown lines about the towers, their ``folders`` and the tokenizer."""
    lines = [
        f"* {name}{(folders or {}).get(name, '')}: {tower.sizes}"
        for name, tower in model.towers.items()
    ]
    casing = model.lower_case, model.strip_accents
    return lines + text_lines(*casing, model.vocabulary, model.trained_length)


def models(imported: Imported) -> dict[str, keras.Model]:
    """Builds the main encoder and the towers with heads, with shared embeddings."""
    shared = imported.main.sizes
    embeddings = TextEmbedding(
        size=shared.embedding_size,
        **{name: getattr(shared, name) for name in _OF_EMBEDDINGS},
        dropout=shared.dropout,
        initializer_range=shared.initializer_range,
        dtype="float32",
        name="embeddings",
    )
    built: dict[str, keras.Model] = {}
    if tower := imported.generator:
        text_encoder = _encoder(tower.sizes, "generator", embeddings)
        generator = MaskedLM(text_encoder, name="masked_lm")
        assign(encoder_variables(generator.encoder), tower.encoder)
        assign(head_variables(generator.head), tower.head)
        built |= {"generator": generator, "encoder": generator.encoder}
    if tower := imported.discriminator:
        built["encoder"] = _encoder(tower.sizes, "discriminator", embeddings)
        assign(encoder_variables(built["encoder"]), tower.encoder)
        if tower.head:
            objective = ReplacedTokenDetection(name="objective")
            built["discriminator"] = ReplacedTokenDetector(built["encoder"], objective)
            assign(head_variables(objective.head), tower.head)
    return built


def _encoder(sizes: Sizes, name: str, embeddings: TextEmbedding) -> TextEncoder:
    return TextEncoder(
        embeddings,
        **{name: getattr(sizes, name) for name in _OF_ENCODER},
        dtype="float32",
        name=name,
    )


def assign(variables: Mapping[str, keras.Variable], arrays: Arrays) -> None:
    """Assigns arrays to variables by name; raises ValueError if the names differ."""
    if different := sorted(variables.keys() ^ arrays.keys()):
        raise UserError(f"The model differs in {', '.join(different[:5])}.")
    for name, variable in variables.items():
        variable.assign(arrays[name])


def encoder_tower(
    encoder: TextEncoder, source: str, head: keras.layers.Layer | None = None
) -> Tower:
    """Returns the arrays; raises ValueError for options that other formats lack."""
    activations = {block.activation for block in encoder.transformer.blocks}
    epsilons = {encoder.layer_norm_epsilon, encoder.embeddings.layer_norm_epsilon}
    is_variant = activations - {"gelu"} or encoder.direction != "both"
    if is_variant or epsilons != {_EPSILON}:
        raise UserError(
            f"{source} has the activations {', '.join(sorted(activations))}, the "
            f"direction {encoder.direction} and the LayerNorm epsilons "
            f"{sorted(epsilons)}; only gelu, both and {_EPSILON} can be converted."
        )
    if any(modes(encoder)):
        raise UserError(f"{source} is quantized: convert the model before quantize.")
    if encoder.lora_rank:
        encoder = encoder.merge_lora()
    table = encoder.embeddings
    sizes = Sizes(
        embedding_size=table.size,
        **{name: getattr(table, name) for name in _OF_EMBEDDINGS},
        **{name: getattr(encoder, name) for name in _OF_ENCODER},
    )
    heads = {} if head is None else values(head_variables(head))
    return Tower(sizes, values(encoder_variables(encoder)), heads)


def encoder_variables(encoder: TextEncoder) -> dict[str, keras.Variable]:
    """Returns the variables under the names of ``names.Style.encoder``."""
    named = {f"{EMBEDDINGS}{v.name}": v for v in encoder.embeddings.weights}
    for index, block in enumerate(encoder.transformer.blocks):
        named |= {f"layer_{index}/{v.name}": v for v in block.weights}
    known = {id(variable) for variable in named.values()}
    rest = [v for v in encoder.weights if id(v) not in known]
    return named | {variable.name: variable for variable in rest}


def head_variables(head: keras.layers.Layer) -> dict[str, keras.Variable]:
    """Returns a head's own variables by name, without a tied word table."""
    table = getattr(head, "embeddings", None)
    shared = {id(v) for v in table.variables} if table is not None else set()
    return {v.name: v for v in head.weights if id(v) not in shared}


def values(variables: Mapping[str, keras.Variable]) -> Arrays:
    """Returns the values of variables, float32."""
    return {name: np.asarray(v.numpy(), np.float32) for name, v in variables.items()}
