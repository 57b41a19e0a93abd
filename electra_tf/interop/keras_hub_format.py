"""keras-hub as a row of `electra_tf.convert`: between backbones and `Imported`."""

from __future__ import annotations

from pathlib import Path

from electra_tf.interop import keras_hub, networks
from electra_tf.interop.imported import Imported, Source

NAME = "keras_hub"
OUTPUTS = (
    "assets/tokenizer/vocabulary.txt",
    "config.json",
    "metadata.json",
    "model.weights.h5",
    "tokenizer.json",
)


def detect(source: Source) -> bool:
    """Whether it is a preset (folder or name) or a `.keras` file of a backbone."""
    return keras_hub.detect(source.path)


def read(source: Source) -> Imported:
    """Takes a backbone as the tower to fine-tune; it has no head.

    Raises:
        ValueError: It is no backbone, something does not fit, or `source` asks for
            what a backbone does not have.
        OSError: It is not there.
    """
    if source.generator or source.only == "generator":
        raise ValueError(
            f"{source.path} is a keras-hub backbone, which has no generator: leave out "
            "--generator and --only=generator."
        )
    source.refuse("num_heads", "generator_num_heads")
    found = keras_hub.read(source.path, log=lambda _: None)
    return Imported(
        format=NAME,
        source=source.path,
        discriminator=networks.encoder_tower(found.encoder, {}, source.path),
        vocabulary=found.vocabulary,
        lower_case=found.lower_case,
        strip_accents=found.strip_accents,
        notes=found.notes,
    )


def write(folder: Path, model: Imported) -> tuple[str, ...]:
    """Writes a preset of the main tower's encoder; returns what it does not hold.

    Raises:
        ValueError: The format cannot hold this encoder or vocabulary.
    """
    return keras_hub.write(
        folder,
        networks.models(model)["encoder"],
        model.vocabulary,
        lower_case=model.lower_case,
        strip_accents=model.strip_accents,
        overwrite=True,  # `folder` is empty and the caller's own.
        log=lambda _: None,
    )
