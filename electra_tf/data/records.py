"""TFRecord shards of examples, and the manifest that says what is in them.

A record holds ``input_ids`` only, unpadded: mask and segments follow from the ids, and
masking happens when the records are read. Shards that the original builder wrote
(``input_ids``, ``input_mask`` and ``segment_ids`` of one fixed length) can be read as
well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from electra_tf import files

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
NO_INPUT_IDS = "a record has no input_ids: not a pretraining record"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """One TFRecord file, by name without folder; special tokens count as tokens."""

    name: str
    records: int
    tokens: int
    size: int
    sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a folder of records holds and how it was made.

    Attributes:
        settings: everything that decides what the records are: ``vocabulary_sha256``,
            ``lower_case``, ``max_seq_length``, ``segmenting``, ``seed``, ...
        vocabulary: ``size``, ``sha256``, names and ids of the special tokens.
        corpus: the ``sources``, and counts: ``documents``, ``lines``, ``characters``,
            and, of the tokens to train on, ``unknown_tokens``.
        eval: held-out shards; may be empty.
    """

    settings: dict
    vocabulary: dict
    corpus: dict
    train: tuple[Shard, ...]
    eval: tuple[Shard, ...] = ()
    format_version: int = FORMAT_VERSION

    @property
    def num_records(self) -> int:
        """Examples to train on."""
        return sum(shard.records for shard in self.train)

    @property
    def num_tokens(self) -> int:
        """Tokens to train on, special tokens included."""
        return sum(shard.tokens for shard in self.train)

    def save(self, folder: files.AnyPath) -> None:
        """Writes ``manifest.json`` into the folder."""
        path = Path(folder, MANIFEST)
        files.write_json(path, dataclasses.asdict(self), sort_keys=True)


def read_manifest(folder: files.AnyPath) -> Manifest:
    """Reads ``manifest.json``; ValueError: none, damaged, or of a newer format."""
    path = Path(folder, MANIFEST)
    try:
        content = files.read_json(path)
        version = content["format_version"]
        if version <= FORMAT_VERSION:
            shards = {
                split: tuple(Shard(**shard) for shard in content.pop(split))
                for split in ("train", "eval")
            }
            return Manifest(**content, **shards)
    except FileNotFoundError as error:
        raise ValueError(
            f"{path} does not exist: no records were built here, or the build was "
            "interrupted. Run electra_tf.data.build_records (again)."
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: damaged manifest ({error!r}). Build the records again."
        ) from error
    raise ValueError(
        f"{path}: format {version}, this library reads {FORMAT_VERSION}: update it, or "
        "build the records again"
    )


def verify(folder: files.AnyPath, *, thorough: bool = False) -> Manifest:
    """Reads the manifest and checks that every shard is there and has its size.

    ``thorough`` compares the sha256 too, which reads all files. Raises ValueError: a
    shard is missing, has another size or (thorough) other content.
    """
    manifest = read_manifest(folder)
    for shard in (*manifest.train, *manifest.eval):
        path = Path(folder, shard.name)
        if not path.is_file():
            problem = "missing"
        elif (size := path.stat().st_size) != shard.size:
            wanted = f"the manifest says {shard.size} (truncated copy?)"
            problem = f"has {size} bytes, {wanted}"
        elif thorough and files.sha256(path) != shard.sha256:
            problem = "its sha256 is not the one in the manifest"
        else:
            continue
        raise ValueError(
            f"{path}: {problem}. Copy the folder again, or build the records again "
            "with overwriting allowed."
        )
    return manifest


def serialize(example: Sequence[int]) -> bytes:
    """A record: a ``tf.train.Example`` with the int64 list ``input_ids``."""
    ids = tf.train.Feature(int64_list=tf.train.Int64List(value=example))
    features = tf.train.Features(feature={"input_ids": ids})
    return tf.train.Example(features=features).SerializeToString(deterministic=True)


def parse_batch(serialized: tf.Tensor) -> tf.RaggedTensor:
    """Token ids of a batch of records, without padding: [B, None] int32, ragged.

    Takes records, [B] string, of ours or of the original builder. Where a record has an
    ``input_mask``, only the ids under its ones are kept; one without ``input_ids``
    raises ``tf.errors.InvalidArgumentError``.
    """
    feature = tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)
    features = {"input_ids": feature, "input_mask": feature}
    parsed = tf.io.parse_example(serialized, features)
    ids, mask = parsed["input_ids"], parsed["input_mask"]
    tf.debugging.assert_positive(ids.row_lengths(), NO_INPUT_IDS)
    masked = tf.reduce_sum(mask, axis=1)
    lengths = tf.where(mask.row_lengths() > 0, masked, ids.row_lengths())
    dense = tf.cast(ids.to_tensor(), tf.int32)
    return tf.RaggedTensor.from_tensor(dense, lengths=lengths)


def write_shard(path: files.AnyPath, examples: Iterable[Sequence[int]]) -> Shard:
    """Writes the token ids of examples as one TFRecord file, whole or not at all."""
    records = tokens = 0
    with files.replacing(path) as part:
        with _os_errors(path), tf.io.TFRecordWriter(str(part)) as writer:
            for example in examples:
                writer.write(serialize(example))
                records += 1
                tokens += len(example)
        return _shard(path, part, records, tokens)


def join_shards(
    path: files.AnyPath, folder: files.AnyPath, shards: Sequence[Shard]
) -> Shard:
    """Writes one TFRecord file of the records of several shards in ``folder``."""
    with files.replacing(path) as part:
        # A TFRecord file has no header: appended bytes are a file of all records.
        with open(part, "wb") as file:
            for shard in shards:
                file.write(Path(folder, shard.name).read_bytes())
        records = sum(shard.records for shard in shards)
        tokens = sum(shard.tokens for shard in shards)
        return _shard(path, part, records, tokens)


def _shard(path: files.AnyPath, part: Path, records: int, tokens: int) -> Shard:
    return Shard(
        name=Path(path).name,
        records=records,
        tokens=tokens,
        size=part.stat().st_size,
        sha256=files.sha256(part),
    )


@contextlib.contextmanager
def _os_errors(path: files.AnyPath) -> Iterator[None]:
    """Turns TensorFlow's file errors into the OSError they stand for."""
    codes = {
        tf.errors.ResourceExhaustedError: errno.ENOSPC,
        tf.errors.PermissionDeniedError: errno.EACCES,
        tf.errors.NotFoundError: errno.ENOENT,
    }
    try:
        yield
    except tf.errors.OpError as error:
        code = codes.get(type(error), errno.EIO)
        raise OSError(code, os.strerror(code), str(path)) from error


def count_records(path: files.AnyPath) -> int:
    """Counts the records of a TFRecord file by its length headers.

    They are a hundredth of a big file. ValueError: it is no TFRecord file, or cut off.
    """
    size = os.path.getsize(path)
    position = count = 0
    with open(path, "rb") as file:
        while position < size:
            header = file.read(12)
            if len(header) < 12:
                raise ValueError(
                    f"{path}: cut off at byte {position}, in the header of a record"
                )
            length, checksum = struct.unpack("<QI", header)
            if checksum != _masked_crc(header[:8]):
                raise ValueError(
                    f"{path}: no record starts at byte {position} (bad checksum): not "
                    "a TFRecord file, compressed, or damaged"
                )
            # The header, the record, and the record's own checksum.
            position += 12 + length + 4
            if position > size:
                raise ValueError(
                    f"{path}: cut off at byte {size}, in a record of {length} bytes"
                )
            file.seek(position)
            count += 1
    return count


def _crc_table() -> list[int]:
    """CRC-32C (Castagnoli), reflected: remainder of each byte."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC = _crc_table()


def _masked_crc(data: bytes) -> int:
    """CRC-32C as TFRecord files hold it: rotated, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def token_counts(batches: Iterable[np.ndarray], vocab_size: int) -> np.ndarray:
    """Counts tokens, [vocab_size] int64, of arrays of unpadded ids of any shape."""
    counts = np.zeros(vocab_size, np.int64)
    for ids in batches:
        counts += np.bincount(np.ravel(ids), minlength=vocab_size)
    return counts
