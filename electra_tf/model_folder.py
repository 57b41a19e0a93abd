"""What lies beside a model: settings, vocabulary, casing; and the models themselves.

The one place that knows how the folder of a pretraining run (or of an import, which
has the same files) is read. Fine-tuning, inspection and diagnosis come here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import keras

from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.interop.tensor_files import read_json
from electra_tf.tasks.heads import TaskModel

CONFIG = "config.json"
VOCABULARY = "vocab.txt"

Log = Callable[[str], None]
Model = TypeVar("Model", bound=keras.Model)

_CASING = ("lower_case", "strip_accents")


def read_config(folder: Path) -> dict[str, Any]:
    """What the folder's config.json holds; empty if there is none.

    Raises:
        ValueError: The file is damaged.
        OSError: It cannot be read.
    """
    return read_json(folder / CONFIG)


def flags(described: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of the pretraining run, from `read_config`; empty if unknown."""
    return dict(_section(described, "config"))


def casing(described: Mapping[str, Any]) -> dict[str, bool]:
    """`lower_case` and `strip_accents` as far as config.json tells.

    The section `data` tells how the records were made and wins over the flags of
    `config`, which may have been left at their defaults when records were given.
    """
    sections = [_section(described, name) for name in ("config", "data")]
    return {
        name: bool(section[name])
        for section in (described, *sections)
        for name in _CASING
        if isinstance(section.get(name), bool)
    }


def vocabulary_sha256(described: Mapping[str, Any]) -> str | None:
    """The hash of the vocabulary that the model was trained with; None if unknown."""
    return _section(described, "data").get("vocabulary_sha256")


def _section(described, name):
    found = described.get(name, {})
    return found if isinstance(found, Mapping) else {}


def tokenizer(
    folder: Path,
    described: Mapping[str, Any],
    log: Log,
    *,
    vocab_file: str | None = None,
    lower_case: bool | None = None,
    strip_accents: bool | None = None,
) -> WordPiece:
    """The tokenizer that the model in `folder` was trained with.

    Args:
        folder: Where the model lies.
        described: Its `read_config`.
        log: Is told what had to be assumed.
        vocab_file: Vocabulary to take instead of the folder's.
        lower_case: Casing to take instead of what config.json says.
        strip_accents: The same for accents.

    Raises:
        ValueError: The vocabulary is damaged.
        OSError: There is none, or it cannot be read.
    """
    path = Path(vocab_file or folder / VOCABULARY)
    if not path.is_file():
        raise FileNotFoundError(
            f"No vocabulary at {path}: set --vocab_file to the vocabulary that the "
            "encoder was pretrained with."
        )
    chosen, known = {}, casing(described)
    for name, given in zip(_CASING, (lower_case, strip_accents), strict=True):
        chosen[name] = known.get(name, True) if given is None else given
        if given is None and name not in known:
            log(f"warning: no config.json beside the encoder says --{name}; assumed")
    return WordPiece(Vocabulary.load(path), **chosen)


def load(path: Path, kind: type[Model], hint: str) -> Model:
    """Loads a saved Keras model and insists on its class.

    Args:
        path: The `.keras` file.
        kind: The class it must have.
        hint: What to give instead, the end of the error messages.

    Raises:
        ValueError: The file is damaged or holds something else.
    """
    try:
        loaded = keras.saving.load_model(path, compile=False)
    except Exception as error:  # Keras raises whatever its parts raise.
        raise ValueError(
            f"{path} cannot be loaded as a Keras model ({error}). {hint}"
        ) from error
    if isinstance(loaded, kind):
        return loaded
    if isinstance(loaded, TaskModel):
        hint = f"It is fine-tuned already; start from the pretrained encoder. {hint}"
    raise ValueError(
        f"{path} holds a {type(loaded).__name__}, not a {kind.__name__}. {hint}"
    )
