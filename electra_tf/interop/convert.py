"""Converts pretrained weights between this and other libraries."""

import dataclasses
from pathlib import Path
from types import ModuleType

import numpy as np

from electra_tf import cli, files
from electra_tf.cli import Log
from electra_tf.config import fields
from electra_tf.config.commands import ConvertConfig
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.errors import UserError, some_of
from electra_tf.folders.pretraining import CHECKPOINTS, PretrainingFolder, named
from electra_tf.interop import google_tf1, hugging_face, keras_hub, run_folder
from electra_tf.interop.networks import Imported, Source

# Modules by format (see ``networks``); the first module that detects a source reads it.
FORMATS: dict[str, ModuleType] = {
    module.NAME: module for module in (run_folder, google_tf1, keras_hub, hugging_face)
}


def main(options: ConvertConfig, log: Log = cli.say) -> None:
    """Converts ``options.source`` to the folder ``options.to``, atomically."""
    fields.check_dependencies(options)
    target = FORMATS[options.format]
    # A relative path such as "." has no name for a temporary sibling folder.
    folder = Path(options.to).resolve()
    # May restore a folder, which then is not overwritten.
    files.remove_leftovers(folder.parent)
    _check_output(Path(options.to), target, overwrite=options.overwrite)
    names = ("generator", "num_heads", "only", "pair")
    source = Source(options.source, **{n: getattr(options, n) for n in names})
    model = find_format(source).read(source)
    _check_finite(model)
    if model.task:
        _check_task(model, options)
    model = completed(model, options)
    log(f"{model.source} ({model.format})")
    for role, tower in model.towers.items():
        count = sum(x.size for x in (*tower.encoder.values(), *tower.head.values()))
        head = "" if tower.head else ", no head"
        log(f"  {role}: {tower.sizes}; {count:,} parameters{head}")
    if model.task:
        outputs = model.task.arrays["output_bias"].size
        log(f"  head: {model.task.kind}, {outputs} outputs")
    for note in model.notes:
        log(f"  {note}")
    if model.not_taken:
        log(f"  not taken: {some_of(model.not_taken)}")
    # Every format holds at least one encoder. HDF5 aborts on a full disk.
    weights = sum(array.size for array in model.main.encoder.values())
    with files.replacing(folder, size=(2 if model.float16 else 4) * weights) as part:
        part.mkdir()
        notes = target.write(part, model)
    for note in notes:
        log(f"  {note}")
    written = ", ".join(sorted(path.name for path in folder.iterdir()))
    log(f"{Path(options.to)} holds {written}")


def _check_finite(model: Imported) -> None:
    """Raises ValueError if weights are not finite, as of a run that diverged."""
    parts = {role: {**x.encoder, **x.head} for role, x in model.towers.items()}
    parts["head"] = model.task.arrays if model.task else {}
    for part, arrays in parts.items():
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                raise UserError(
                    f"{model.source}: {name} of the {part} has values that are not "
                    "finite."
                )


def _check_task(model: Imported, options: ConvertConfig) -> None:
    """Raises ValueError if the format cannot hold the head of a fine-tuned model."""
    target = "hugging_face" if model.format == "electra_tf" else "electra_tf"
    is_float16 = options.float16 and target == "electra_tf"
    if options.format != target or is_float16:
        formats = f"--format={target}{' without --float16' * is_float16}"
        raise UserError(
            f"{model.source} is fine-tuned: pass {formats}, or --only=discriminator."
        )


def find_format(source: Source) -> ModuleType:
    """Returns the first format that can read the source."""
    for module in FORMATS.values():
        if module.detect(source):
            return module
    path = Path(source.path)
    if not path.exists():
        raise FileNotFoundError(
            f"{source.path} is not a folder, a checkpoint or owner/name on the hub."
        )
    message = f"{source.path} is not in a known format ({', '.join(FORMATS)})."
    if (path / CHECKPOINTS).is_dir():
        message += " It is a pretraining run that did not finish."
    raise UserError(message)


def completed(model: Imported, options: ConvertConfig) -> Imported:
    """Fills in facts that the source lacks, from the options or defaults."""
    notes, vocabulary = list(model.notes), model.vocabulary
    if options.vocab_file:
        vocabulary = Vocabulary.load(options.vocab_file)
    if vocabulary is None:
        raise UserError(f"{model.source} has no vocab.txt: pass --vocab_file.")
    if model.run:
        home = PretrainingFolder(named(model.source))
        home.check_hash(vocabulary, options.vocab_file)
    sizes = model.main.sizes
    if len(vocabulary) > sizes.vocab_size:
        raise UserError(
            f"The vocabulary has {len(vocabulary)} tokens but the weights have "
            f"embeddings for {sizes.vocab_size}: pass --vocab_file."
        )
    # Tables are often padded to a round number of rows.
    if rows := range(len(vocabulary), sizes.vocab_size):
        notes.append(
            f"{len(rows)} rows of the word table have no token; named [no_token_N]"
        )
        tokens = (*vocabulary.tokens, *(f"[no_token_{row}]" for row in rows))
        vocabulary = dataclasses.replace(vocabulary, tokens=tokens)
    casing = {}
    for name in ("lower_case", "strip_accents"):
        given = getattr(options, name)
        casing[name] = getattr(model, name) if given is None else given
        if casing[name] is None:
            casing[name] = True
            notes.append(f"warning: the source lacks --{name}; assumed true")
    length = options.trained_length or model.trained_length or sizes.max_positions
    if (options.trained_length or 0) > sizes.max_positions:
        raise UserError(
            f"--trained_length={length} exceeds the {sizes.max_positions} positions."
        )
    return dataclasses.replace(
        model,
        vocabulary=vocabulary,
        trained_length=min(length, sizes.max_positions),
        float16=options.float16,
        notes=tuple(notes),
        **casing,
    )


def _check_output(folder: Path, target: ModuleType, *, overwrite: bool) -> None:
    """Raises ValueError if the folder has other files, or any without --overwrite."""
    if not folder.exists():
        return
    names = sorted(path.name for path in folder.iterdir())
    if names and not overwrite:
        raise UserError(
            f"--to={folder} is not empty ({some_of(names)}): pass --overwrite."
        )
    inside = sorted(path for path in folder.rglob("*") if not path.is_dir())
    relative = (path.relative_to(folder).as_posix() for path in inside)
    foreign = [name for name in relative if name not in target.OUTPUTS]
    if foreign:
        raise UserError(
            f"--to={folder} holds files that are not of this format "
            f"({some_of(foreign)}): name another folder."
        )
