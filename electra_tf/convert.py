r"""Converts pretrained weights: other libraries' to ours, and ours to theirs.

  # In: a local folder, a checkpoint, or owner/name on the Hugging Face hub.
  python -m electra_tf.convert --from=electra_small/ --to=imported
  python -m electra_tf.convert --from=disc_dir --generator=gen_dir --to=imported

  # Then fine-tune, or go on pretraining on text of your own.
  python run_finetuning.py --flagfile=configs/tasks/mrpc.cfg --data_dir=glue/MRPC \
      --encoder=imported/encoder.keras
  python run_pretraining.py --flagfile=configs/small_plus_plus.cfg \
      --init_from=imported --corpus=my_domain/

  # Out: a folder that transformers loads, a TensorFlow 1 checkpoint, or a preset of
  # keras-hub.
  python -m electra_tf.convert --from=runs/mine --to=hf_dir --format=hugging_face

Sizes come from the weights. Every variable is accounted for on both sides: one that is
missing, misshapen or unknown is an error that names it. Exit codes: 0 done, 1 error.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np

from electra_tf.data.vocabulary import Vocabulary
from electra_tf.interop import (
    google_tf1,
    hugging_face,
    keras_hub_format,
    run_folder,
)
from electra_tf.interop.imported import Imported, Source
from electra_tf.interop.output import check_output, listed, publish

Log = Callable[[str], None]

# Format -> its module, see `electra_tf.interop.imported`; asked in this order whether
# they can read a source.
FORMATS: dict[str, ModuleType] = {
    "electra_tf": run_folder,
    "google_tf1": google_tf1,
    "keras_hub": keras_hub_format,
    "hugging_face": hugging_face,
}


def convert(options: argparse.Namespace, log: Log) -> Imported:
    """Reads `options.source`, writes `options.to`; nothing is left half written.

    Args:
        options: As `parser` makes them.
        log: Receives one line of progress.

    Returns:
        What was read, completed by the options.

    Raises:
        ValueError: The source is damaged, a variant that this library does not have,
            or lacks something; or the folder to write to holds something else.
        OSError: A file is missing or cannot be written.
    """
    target = FORMATS[options.format]
    folder = Path(options.to)
    check_output(folder, target, overwrite=options.overwrite)
    source = Source(
        options.source,
        generator=options.generator,
        num_heads=options.num_heads,
        generator_num_heads=options.generator_num_heads,
        only=options.only,
    )
    model = find_format(source).read(source)
    _check_used(source, model)
    model = completed(model, options)
    log(f"{model.source} ({model.format})")
    for name, tower in model.towers.items():
        arrays = [*tower.encoder.values(), *tower.head.values()]
        count = sum(int(np.prod(array.shape)) for array in arrays)
        head = "" if tower.head else ", no head"
        log(f"  {name}: {tower.sizes}; {count:,} parameters{head}")
    for note in model.notes:
        log(f"  {note}")
    if model.not_taken:
        log(f"  not taken: {listed(model.not_taken)}")
    for note in publish(folder, target, model):
        log(f"  {note}")
    log(f"{folder} holds {', '.join(sorted(path.name for path in folder.iterdir()))}")
    return model


def _check_used(source: Source, model: Imported) -> None:
    """Refuses a number of heads for a tower that is not there."""
    for flag, role in (
        ("num_heads", "discriminator"),
        ("generator_num_heads", "generator"),
    ):
        if getattr(source, flag) and role not in model.towers:
            raise ValueError(
                f"--{flag} is the {role}'s, and no {role} is taken from {source.path}."
            )


def find_format(source: Source) -> ModuleType:
    """The first format that can read the source.

    Raises:
        ValueError: None can.
        OSError: There is nothing at the path.
    """
    for module in FORMATS.values():
        if module.detect(source):
            return module
    path = Path(source.path)
    if not path.exists():
        raise FileNotFoundError(
            f"--from={source.path}: there is no such folder or checkpoint. A name on "
            "the Hugging Face hub is owner/name."
        )
    hint = ""
    if (path / "checkpoints").is_dir():
        hint = " It is a pretraining run that did not finish: finish it first."
    raise ValueError(
        f"--from={source.path} is not in a known format ({', '.join(FORMATS)}).{hint}"
    )


def completed(model: Imported, options: argparse.Namespace) -> Imported:
    """Fills in what the source does not say: by the options, or by the defaults.

    Raises:
        ValueError: There is no vocabulary, or it does not fit; or the trained length
            exceeds the position table.
    """
    notes = list(model.notes)
    vocabulary = model.vocabulary
    if options.vocab_file:
        vocabulary = Vocabulary.load(options.vocab_file)
    if vocabulary is None:
        raise ValueError(
            f"{model.source} has no vocab.txt: pass --vocab_file, the vocabulary that "
            "the weights were trained with."
        )
    sizes = model.main.sizes
    vocabulary = _fitted(vocabulary, sizes.vocab_size, notes)
    casing = {}
    for name in ("lower_case", "strip_accents"):
        given = getattr(options, name)
        casing[name] = getattr(model, name) if given is None else given
        if casing[name] is None:
            casing[name] = True
            notes.append(f"warning: the source does not say --{name}; assumed")
    length = options.trained_length or model.trained_length or sizes.max_positions
    if options.trained_length and length > sizes.max_positions:
        raise ValueError(
            f"--trained_length={length} exceeds the {sizes.max_positions} positions of "
            "the model."
        )
    return dataclasses.replace(
        model,
        vocabulary=vocabulary,
        trained_length=min(length, sizes.max_positions),
        notes=tuple(notes),
        **casing,
    )


def _fitted(vocabulary, rows, notes):
    """A token for every row: tables are often padded to a round number of rows."""
    if len(vocabulary) > rows:
        raise ValueError(
            f"The vocabulary has {len(vocabulary)} tokens but the weights have "
            f"embeddings for {rows}: pass --vocab_file with theirs."
        )
    missing = rows - len(vocabulary)
    if not missing:
        return vocabulary
    notes.append(f"{missing} rows of the word table have no token; named [no_token_N]")
    names = (f"[no_token_{index}]" for index in range(len(vocabulary), rows))
    return dataclasses.replace(vocabulary, tokens=(*vocabulary.tokens, *names))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m electra_tf.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument(
        "--from",
        dest="source",
        required=True,
        metavar="PATH",
        help="what to read: a folder of transformers or owner/name on its hub, a "
        "TensorFlow 1 checkpoint or its folder, a preset or backbone of keras-hub, a "
        "finished run or imported folder",
    )
    made.add_argument("--to", required=True, metavar="FOLDER", help="folder to write")
    made.add_argument(
        "--format",
        choices=list(FORMATS),
        default="electra_tf",
        help="what to write (default: electra_tf)",
    )
    made.add_argument(
        "--generator", metavar="PATH", help="the generator's folder (hugging_face)"
    )
    made.add_argument(
        "--only",
        choices=["discriminator", "generator"],
        help="leave the other tower out",
    )
    made.add_argument(
        "--num_heads",
        type=_positive,
        help="attention heads, which no shape tells; default: config file, or hidden "
        "size // 64",
    )
    made.add_argument(
        "--generator_num_heads", type=_positive, help="likewise, of the generator"
    )
    made.add_argument(
        "--vocab_file", help="vocabulary, one token per line; default: the source's"
    )
    made.add_argument(
        "--trained_length",
        type=_positive,
        help="positions that were trained; fine-tuning warns beyond. Default: what the "
        "source says, or the whole position table",
    )
    for name in ("lower_case", "strip_accents"):
        group = made.add_mutually_exclusive_group()
        group.add_argument(
            f"--{name}", action="store_true", default=None, help="overrides the source"
        )
        group.add_argument(f"--no{name}", dest=name, action="store_false", default=None)
    made.add_argument(
        "--overwrite", action="store_true", help="replace an earlier conversion"
    )
    return made


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


def main(arguments: Sequence[str] | None = None, log: Log | None = None) -> int:
    """The command line; returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        convert(options, log or _say)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; nothing was written\n")
        return 1
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
