"""Columns of numbers to records, fast: the rows are laid out as MessagePack by numpy, and msgspec decodes them.

Making a hundred thousand records of keyword arguments takes several times as long as decoding them from JSON Lines did; decoding
them from here does not. Every row of a batch has the same layout, so that a column is written in one stroke: a field that is
null in some rows has another name in those, one that no record knows, and is passed over as unknown fields are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_T = TypeVar("_T", bound=msgspec.Struct)

_FIXED: Final = {int: (pa.int64(), b"\xd3", ">i8"), float: (pa.float64(), b"\xcb", ">f8"), bool: (pa.bool_(), b"", "u1")}
_FALSE: Final = 0xC2
_UNKNOWN: Final = ord("~")
_BLOCK_ROWS: Final = 512
"""So many rows at a time fit into a processor's cache."""


class Layout:
    """MessagePack of ``rows`` maps, all with the same keys in the same places."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._template = bytearray()
        self._values: list[tuple[int, NDArray[np.uint8]]] = []
        self._nulls: list[tuple[int, NDArray[np.bool_]]] = []

    def begin_map(self, entries: int) -> None:
        """The next ``entries`` keys are those of one map."""
        self._template += b"\xde" + entries.to_bytes(2, "big")

    def key(self, name: str, valid: NDArray[np.bool_] | None) -> None:
        """A key; the rows where it is not ``valid`` lack it."""
        word = name.encode()
        self._template += b"\xd9" + bytes([len(word)])
        if valid is not None:
            self._nulls.append((len(self._template), ~valid))
        self._template += word

    def numbers(self, array: pa.Array, kind: type) -> bool:
        """A column of them. Returns false, and lays out nothing, for one that is no such column."""
        arrow, marker, dtype = _FIXED[kind]
        if array.type != arrow:
            return False
        values = (array.fill_null(False) if kind is bool else array.fill_null(0)).to_numpy(zero_copy_only=False)
        if kind is float and not np.isfinite(values).all():
            return False
        encoded = np.ascontiguousarray(values, dtype=dtype)
        if kind is bool:
            encoded = encoded + np.uint8(_FALSE)
        self._template += marker
        self._values.append((len(self._template), encoded.view(np.uint8).reshape(self._rows, -1)))
        self._template += bytes(encoded.dtype.itemsize)
        return True

    def decode(self, kind: type[_T]) -> Iterator[_T]:
        """The records, one by one: made all at once they would take several times as long, for the memory they need.

        Raises ``msgspec.ValidationError``.
        """
        width = len(self._template)
        template = np.frombuffer(bytes(self._template), np.uint8)
        matrix = np.empty((min(self._rows, _BLOCK_ROWS), width), np.uint8)
        decode = msgspec.msgpack.Decoder(kind).decode
        for first in range(0, self._rows, _BLOCK_ROWS):
            block = matrix[: min(_BLOCK_ROWS, self._rows - first)]
            last = first + len(block)
            block[:] = template
            for at, encoded in self._values:
                block[:, at : at + encoded.shape[1]] = encoded[first:last]
            for at, where in self._nulls:
                block[where[first:last], at] = _UNKNOWN
            rows = block.tobytes()
            for start in range(0, len(rows), width):
                yield decode(rows[start : start + width])


def valid_of(array: pa.Array) -> NDArray[np.bool_] | None:
    """Where a column has values; ``None``: everywhere."""
    if not array.null_count:
        return None
    valid: NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid
