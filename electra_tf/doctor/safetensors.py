"""The safetensors format: a JSON header, then raw values; read without its library."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import numpy as np

from electra_tf.doctor.subject import Tensor

# bfloat16 is the upper half of a float32.
_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U8": "|u1",
    "BOOL": "|b1",
}
_LENGTH = 8
_LONGEST_HEADER = 100_000_000


def read(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, by name; values are read from it when asked for.

    Raises:
        ValueError: The file is not whole, or not in this format.
        OSError: It cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(_LENGTH)
        (length,) = struct.unpack("<Q", start) if len(start) == _LENGTH else (0,)
        if not 0 < length <= min(size - _LENGTH, _LONGEST_HEADER):
            raise ValueError(f"{path} is not a whole safetensors file.")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise ValueError(f"{path} has a damaged header: {error}.") from error
    header.pop("__metadata__", None)
    first = _LENGTH + length
    return {name: _tensor(path, name, e, first, size) for name, e in header.items()}


def _tensor(path, name, entry, first, size) -> Tensor:
    try:
        dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(entry["shape"])
        begin, end = entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {name} is not understood ({entry}).") from error
    if end - begin != math.prod(shape) * dtype.itemsize or first + end > size:
        raise ValueError(
            f"{path} is cut off or damaged: the values of {name} are not all there."
        )

    def values() -> np.ndarray:
        count = math.prod(shape)
        found = np.fromfile(path, dtype, count=count, offset=first + begin)
        if entry["dtype"] == "BF16":
            found = (found.astype("<u4") << 16).view("<f4")
        return found.astype(np.float32).reshape(shape)

    return Tensor(shape, values)
