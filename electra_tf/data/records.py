"""TFRecord shards of examples, and their manifest.

A record has unpadded ``input_ids`` only. The writer reproduces
``tf.io.TFRecordWriter`` without TensorFlow, whose import is slow for worker processes.
"""

import dataclasses
import functools
import itertools
import os
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from electra_tf import files
from electra_tf.data import paths
from electra_tf.errors import UserError, explained

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
WRITTEN_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """A TFRecord file, by name without folder; ``tokens`` includes special tokens."""

    name: str
    records: int
    tokens: int
    size: int
    sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """Shards of a records folder and the settings of their build.

    Attributes:
        settings: ``RecordsConfig.settings`` and hashes of vocabulary and text.
        vocabulary: ``size``, ``sha256``, names and ids of the special tokens.
        corpus: ``sources``; counts of documents, lines, characters, [UNK] in the
            training split, and dropped documents by ``selection.REASONS``.

    Examples:
        >>> sum(shard.records for shard in manifest.train) > 0
        True
    """

    settings: dict
    vocabulary: dict
    corpus: dict
    train: tuple[Shard, ...]
    eval: tuple[Shard, ...] = ()
    format_version: int = FORMAT_VERSION

    @property
    def num_records(self) -> int:
        """Number of training examples."""
        return sum(shard.records for shard in self.train)

    @property
    def num_tokens(self) -> int:
        """Number of training tokens, special tokens included."""
        return sum(shard.tokens for shard in self.train)

    def save(self, folder: files.AnyPath) -> None:
        """Writes ``manifest.json`` into the folder."""
        path = Path(folder, MANIFEST)
        files.write_json(path, dataclasses.asdict(self), sort_keys=True)


_SHARDS = [typing.get_type_hints(Shard)]
_FIVE = tuple[int, int, int, int, int]
_SHAPE = {
    "settings": {"max_seq_length": int, "lower_case": bool, "strip_accents": bool},
    "vocabulary": {"size": int, "sha256": str, "special_ids": _FIVE},
    "corpus": dict[str, int | list],
    "train": _SHARDS,
    "eval": _SHARDS,
}


def read_manifest(folder: files.AnyPath) -> Manifest:
    """Reads ``manifest.json``.

    Raises ``ValueError`` if it is missing, damaged, or has a newer format.

    Examples:
        >>> et.data.read_manifest("records").settings["max_seq_length"]
        16
    """
    path = os.path.join(folder, MANIFEST)
    try:
        with paths.open_bytes(path) as file:
            content = file.read()
    except FileNotFoundError as error:
        raise UserError(
            f"{path} does not exist: no records were built here, or the build was "
            "interrupted. Run electra-tf records (again)."
        ) from error
    content = files.parse_json(content, f"{path} is damaged", {"format_version": int})
    if (version := content["format_version"]) > FORMAT_VERSION:
        raise UserError(f"{path}: format {version} is newer than this library")
    files.check_shape(content, _SHAPE, f"{path} is damaged")
    with explained(f"{path} is damaged", TypeError):
        for split in ("train", "eval"):
            content[split] = tuple(Shard(**shard) for shard in content[split])
        return Manifest(**content)


def verify(folder: files.AnyPath) -> Manifest:
    """Reads the manifest; raises ``ValueError`` if a shard is missing or cut off."""
    manifest = read_manifest(folder)
    for shard in (*manifest.train, *manifest.eval):
        path = os.path.join(folder, shard.name)
        again = "Copy the folder or build it again."
        if not paths.is_file(path):
            raise UserError(f"{path}: missing. {again}")
        if (size := paths.size(path)) != shard.size:
            raise UserError(
                f"{path}: has {size} bytes, the manifest lists {shard.size}. {again}"
            )
    return manifest


def write_shard(path: files.AnyPath, examples: Iterable[Sequence[int]]) -> Shard:
    """Writes the token ids of examples to a TFRecord file, atomically.

    Raises ``ValueError`` if an example is empty or an id is negative.

    Examples:
        >>> shard = et.data.write_shard("one.tfrecord", [[2, 7, 8, 3], [2, 9, 3]])
        >>> shard.records, shard.tokens
        (2, 7)
    """
    records = tokens = 0
    examples = iter(examples)
    with files.replacing(path) as part:
        with open(part, "wb") as file:
            while some := list(itertools.islice(examples, WRITTEN_AT_ONCE)):
                if not all(map(len, some)):
                    raise UserError(f"{path}: an example has no token ids")
                if np.concatenate(some).min() < 0:
                    raise UserError(f"{path}: a token id is negative")
                file.write(_framed(some))
                records += len(some)
                tokens += sum(map(len, some))
        return _shard(path, part, records, tokens)


def _framed(examples: Sequence[Sequence[int]]) -> bytes:
    ids, sizes = _varints(np.concatenate(examples))
    ends = np.cumsum(sizes)[np.cumsum([len(example) for example in examples]) - 1]
    ids, ends = ids.tobytes(), [0, *ends.tolist()]
    records = [_head(b - a) + ids[a:b] for a, b in itertools.pairwise(ends)]
    frames = []
    for record, checksum in zip(records, _masked_crcs(records), strict=True):
        frames += _before_record(len(record)), record, checksum.tobytes()
    return b"".join(frames)


def _varints(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Encodes numbers >= 0 as varints; returns all bytes and the size of each."""
    width = max(1, -(-int(values.max()).bit_length() // 7))
    # Seven bits per byte, lowest first; the top bit marks that more bytes follow.
    rest = values[:, None] >> np.arange(0, 7 * width, 7)
    used = rest > 0
    used[:, 0] = True
    digits = (rest & 127 | (rest > 127) << 7).astype(np.uint8)
    return digits[used], used.sum(axis=1)


@functools.lru_cache(10_000)
def _head(size: int) -> bytes:
    """Returns the bytes of a record before its ``size`` bytes of ids."""
    head = b""
    # Innermost first: Int64List.value, Feature.int64_list, map entry (key and value),
    # Features.feature, Example.features; each with its length.
    for field in (b"\x0a", b"\x1a", b"\x0a\x09input_ids\x12", b"\x0a", b"\x0a"):
        head = field + _varints(np.array([len(head) + size]))[0].tobytes() + head
    return head


@functools.lru_cache(10_000)
def _before_record(size: int) -> bytes:
    length = size.to_bytes(8, "little")
    return length + _masked_crcs([length]).tobytes()


def join_shards(
    path: files.AnyPath, folder: files.AnyPath, shards: Sequence[Shard]
) -> Shard:
    """Joins shards in ``folder`` to one TFRecord file."""
    with files.replacing(path) as part:
        # TFRecord files have no header, so they can be concatenated.
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
        sha256=paths.sha256(part),
    )


def count_records(path: files.AnyPath) -> int:
    """Counts the records of a TFRecord file from the record headers."""
    size = paths.size(path)
    position = count = 0
    with paths.open_bytes(path) as file:
        while position < size:
            header = file.read(12)
            length = int.from_bytes(header[:8], "little")
            if len(header) == 12 and header != _before_record(length):
                raise UserError(
                    f"{path}: no record starts at byte {position} (bad checksum): not "
                    "a TFRecord file, compressed, or damaged"
                )
            if len(header) < 12 or position + length + 16 > size:
                raise UserError(f"{path}: cut off at byte {size}, in a record")
            position += length + 16
            file.seek(position)
            count += 1
    return count


# Reflected CRC-32C (Castagnoli) table.
_CRC = np.arange(256, dtype=np.uint32)
for _ in range(8):
    _CRC = np.where(_CRC & 1, np.uint32(0x82F63B78), np.uint32(0)) ^ _CRC >> 1


def _masked_crcs(records: Sequence[bytes]) -> np.ndarray:
    """Computes the masked CRC-32C of records of at least 4 bytes, [N] uint32."""
    sizes = np.array([len(record) for record in records])
    width = sizes.max()
    # Zeros in front of a record keep a register of zero. The initial register of ones
    # is the same as inverting the first four bytes.
    padded = b"".join(record.rjust(width, b"\0") for record in records)
    data = np.frombuffer(bytearray(padded), np.uint8).reshape(-1, width)
    first = (width - sizes)[:, None] + np.arange(4)
    data[np.arange(len(records))[:, None], first] ^= 0xFF
    crc = np.zeros(len(records), np.uint32)
    for column in np.ascontiguousarray(data.T):
        crc = _CRC[(crc ^ column) & 0xFF] ^ crc >> 8
    crc ^= np.uint32(0xFFFFFFFF)
    return ((crc >> 15 | crc << 17) + np.uint32(0xA282EAD8)).astype("<u4")
