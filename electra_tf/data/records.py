"""TFRecord shards of examples, and the manifest that says what is in them.

A record holds `input_ids` only, unpadded: mask and segments follow from the ids, and
masking happens when the records are read. Shards that the original builder wrote
(`input_ids`, `input_mask` and `segment_ids` of one fixed length) can be read as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import tensorflow as tf

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
NO_INPUT_IDS = "a record has no input_ids: not a pretraining record"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """One TFRecord file.

    Attributes:
        name: File name, without folder.
        records: Number of examples.
        tokens: Number of ids in them, special tokens included.
        size: Bytes.
        sha256: Hash of the file.
    """

    name: str
    records: int
    tokens: int
    size: int
    sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a folder of records holds and how it was made.

    Attributes:
        settings: Everything that decides what the records are: `vocabulary_sha256`,
            `lower_case`, `max_seq_length`, `segmenting`, `seed`, `corpus`, ...
        vocabulary: `size`, `sha256` and the ids of the special tokens.
        corpus: Counts: `sources`, `documents`, `lines`, `characters`, and, of the
            tokens to train on, `unknown_tokens`.
        train: Shards to train on.
        eval: Held-out shards; may be empty.
        format_version: Version of this file's format.
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

    def save(self, folder: str | os.PathLike):
        """Writes `manifest.json` into the folder, whole or not at all."""
        write_json(Path(folder, MANIFEST), dataclasses.asdict(self))


def serialize(example: Sequence[int]) -> bytes:
    """A record: a `tf.train.Example` with the int64 list `input_ids`."""
    ids = tf.train.Feature(int64_list=tf.train.Int64List(value=example))
    features = tf.train.Features(feature={"input_ids": ids})
    return tf.train.Example(features=features).SerializeToString(deterministic=True)


def write_shard(path: str | os.PathLike, examples: Iterable[Sequence[int]]) -> Shard:
    """Writes one TFRecord file; it is there whole or not at all.

    Args:
        path: The file.
        examples: Token ids of each example.

    Raises:
        OSError: The disk is full or the folder cannot be written.
    """
    temporary = f"{path}.tmp"
    records = tokens = 0
    try:
        with _os_errors(path), tf.io.TFRecordWriter(temporary) as writer:
            for example in examples:
                writer.write(serialize(example))
                records += 1
                tokens += len(example)
        digest = _sync_and_hash(temporary)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return Shard(
        name=Path(path).name,
        records=records,
        tokens=tokens,
        size=os.path.getsize(path),
        sha256=digest,
    )


def join_shards(path: str | os.PathLike, parts: Iterable[os.PathLike]) -> str:
    """Appends TFRecord files to one another in a new file; returns its sha256."""
    temporary = f"{path}.tmp"
    try:
        with open(temporary, "wb") as file:
            for part in parts:
                file.write(Path(part).read_bytes())
        digest = _sync_and_hash(temporary)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return digest


def parse_batch(serialized: tf.Tensor) -> tf.RaggedTensor:
    """Token ids of a batch of records, without padding.

    Args:
        serialized: [B] string, records of ours or of the original builder. Where a
            record has an `input_mask`, only the ids under its ones are kept.

    Returns:
        [B, None] int32, ragged.

    Raises:
        tf.errors.InvalidArgumentError: A record has no `input_ids`.
    """
    feature = tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)
    parsed = tf.io.parse_example(
        serialized, {"input_ids": feature, "input_mask": feature}
    )
    ids, mask = parsed["input_ids"], parsed["input_mask"]
    tf.debugging.assert_positive(ids.row_lengths(), NO_INPUT_IDS)
    lengths = tf.where(
        mask.row_lengths() > 0, tf.reduce_sum(mask, axis=1), ids.row_lengths()
    )
    dense = tf.cast(ids.to_tensor(), tf.int32)
    return tf.RaggedTensor.from_tensor(dense, lengths=lengths)


def count_records(path: str | os.PathLike) -> int:
    """Counts the records of a TFRecord file by its length headers.

    Raises:
        ValueError: The file is not a TFRecord file or is cut off.
    """
    return sum(1 for _ in _record_lengths(path))


def read_manifest(folder: str | os.PathLike) -> Manifest:
    """Reads `manifest.json`.

    Raises:
        ValueError: There is none, it is damaged, or of a newer format.
    """
    path = Path(folder, MANIFEST)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version = content["format_version"]
        if version > FORMAT_VERSION:
            raise ValueError(
                f"{path}: format {version}, this library reads {FORMAT_VERSION}: "
                "update it, or build the records again"
            )
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
    except (KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path}: damaged manifest ({error!r}). Build the records again."
        ) from error


def verify(folder: str | os.PathLike, *, thorough: bool = False) -> Manifest:
    """Checks that every shard of the manifest is there and has its size.

    Args:
        folder: Folder of the records.
        thorough: Whether to compare the sha256 too, which reads all files.

    Returns:
        The manifest.

    Raises:
        ValueError: A shard is missing, has another size or (thorough) other content.
    """
    manifest = read_manifest(folder)
    for shard in (*manifest.train, *manifest.eval):
        path = Path(folder, shard.name)
        problem = _problem(path, shard, thorough)
        if problem:
            raise ValueError(
                f"{path}: {problem}. Copy the folder again, or build the records again "
                "with overwriting allowed."
            )
    return manifest


def write_json(path: Path, content: dict):
    """Writes a JSON file, whole or not at all."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _problem(path: Path, shard: Shard, thorough: bool) -> str:
    if not path.is_file():
        return "missing"
    size = path.stat().st_size
    if size != shard.size:
        return f"has {size} bytes, the manifest says {shard.size} (truncated copy?)"
    if thorough and _sync_and_hash(path) != shard.sha256:
        return "its sha256 is not the one in the manifest"
    return ""


def _record_lengths(path: str | os.PathLike) -> Iterator[int]:
    size = os.path.getsize(path)
    position = 0
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
            position += 12 + length + 4
            if position > size:
                raise ValueError(
                    f"{path}: cut off at byte {size}, in a record of {length} bytes"
                )
            file.seek(position)
            yield length


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
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _sync_and_hash(path: str | os.PathLike) -> str:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _os_errors(path: str | os.PathLike) -> Iterator[None]:
    """Turns TensorFlow's file errors into the OSError they stand for."""
    try:
        yield
    except tf.errors.OpError as error:
        code = _ERROR_CODES.get(type(error), errno.EIO)
        raise OSError(code, os.strerror(code), str(path)) from error


_ERROR_CODES = {
    tf.errors.ResourceExhaustedError: errno.ENOSPC,
    tf.errors.PermissionDeniedError: errno.EACCES,
    tf.errors.NotFoundError: errno.ENOENT,
}
