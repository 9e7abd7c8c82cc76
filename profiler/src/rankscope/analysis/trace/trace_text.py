"""Trace file as blocks of JSON text: plain, gzip or Zstandard, of bounded size; every error names the file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

from rankscope.analysis.trace.locations import Location, open_location, translate_errors
from rankscope.base.errors import InputError, MissingError

if TYPE_CHECKING:
    import zlib
else:
    try:
        from zlib_ng import zlib_ng as zlib
    except ImportError:  # slower, same result; the helper beside a rank does without zlib-ng, because it reads plain traces
        import zlib

MAX_BYTES: Final = 32 * 1024**3
"""Size of the text above which a trace is refused: reading it would take minutes."""

BLOCK: Final = 512 * 1024
"""Size of the text decoded at a time. Measured: a block that fits a processor's cache decodes a third faster than 4 MiB."""

BOMB_RATIO: Final = 250
"""Compression ratio above which a file of more than ``BOMB_BYTES`` of text is refused; real traces have 15 to 40."""
BOMB_BYTES: Final = 256 * 1024**2

_PACKED_BLOCK: Final = 64 * 1024
_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"


class TraceText:
    """JSON text of a trace, block by block, for one pass.

    Iterating raises ``InputError`` when the file is missing, is not a file, does not match its magic bytes, decompresses to too
    much text, or fails its checksum. It raises ``MissingError`` when a package to read the file is not installed. Where
    compressed data is cut off or damaged, the text ends and ``torn`` gives the reason. ``of_run``: see ``open_location``.
    """

    def __init__(self, path: Location, *, of_run: bool = False) -> None:
        self.path = path
        self._of_run = of_run
        self.torn: str | None = None
        self._packed_bytes = 0
        self._bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        try:
            if isinstance(self.path, Path) and self.path.is_dir():
                raise InputError(self.path, "a folder, not a trace file")
            with open_location(self.path, of_run=self._of_run) as file:
                for block in self._blocks(file):
                    self._bytes += len(block)
                    self._check_size()
                    yield block
        except FileNotFoundError as error:
            raise InputError(self.path, "no such file or folder") from error
        except OSError as error:
            raise InputError(self.path, error.strerror or str(error)) from error

    def _blocks(self, file: BinaryIO) -> Iterator[bytes]:
        start = self._read(file, _PACKED_BLOCK)
        if start.startswith(_GZIP_MAGIC):
            return self._unpacked(file, start, "gzip", _Gunzip, zlib.error)
        if start.startswith(_ZSTD_MAGIC):
            return self._unpacked(file, start, "Zstandard", *_zstd(self.path))
        return self._plain(file, start)

    def _read(self, file: BinaryIO, size: int) -> bytes:
        return file.read(size) if isinstance(self.path, Path) else translate_errors(self.path, lambda: file.read(size))

    def _plain(self, file: BinaryIO, start: bytes) -> Iterator[bytes]:
        while start:
            yield start
            start = self._read(file, BLOCK)

    def _unpacked(
        self, file: BinaryIO, packed: bytes, name: str, new: Callable[[], _Decompressor], damage: type[Exception]
    ) -> Iterator[bytes]:
        """Yield the text of all members (frames) of the file, one after the other."""
        decompressor, inside = new(), False
        self._packed_bytes = len(packed)
        while True:
            if not packed and decompressor.needs_input:
                packed = self._read(file, _PACKED_BLOCK)
                self._packed_bytes += len(packed)
                if not packed:
                    self.torn = f"the {name} data ends before its end marker" if inside else None
                    return
            try:
                text = decompressor.decompress(packed, BLOCK)
            except damage as error:
                if not self._bytes:
                    raise InputError(self.path, f"damaged {name} data: {error}") from error
                if inside and "check" in str(error):
                    # The data is complete, but an unknown part of it has changed.
                    raise InputError(self.path, f"damaged {name} data: {error}; its numbers cannot be trusted") from error
                # Damage between two members is data appended to the file.
                self.torn = f"damaged {name} data: {error}" if inside else None
                return
            packed, inside = b"", True
            if text:
                yield text
            if decompressor.eof:
                packed = decompressor.unused_data.lstrip(b"\0")
                decompressor, inside = new(), False

    def _check_size(self) -> None:
        if self._bytes > MAX_BYTES:
            raise InputError(self.path, f"more than {MAX_BYTES / 1024**3:g} GiB of JSON: too large to analyse")
        if self._bytes > BOMB_BYTES and 0 < self._packed_bytes * BOMB_RATIO < self._bytes:
            times = self._bytes // self._packed_bytes
            raise InputError(self.path, f"a decompression bomb: it unfolds {times} times, which no trace does")


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gunzip:
    """Decompressor of one gzip member, with the interface of the standard library's other decompressors.

    The text before damaged data is still returned; the next call raises the error.
    """

    def __init__(self) -> None:
        self._object = zlib.decompressobj(wbits=31)
        self._error: zlib.error | None = None
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._object.eof

    @property
    def unused_data(self) -> bytes:
        return self._object.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        if self._error is not None:
            raise self._error
        data = self._object.unconsumed_tail + data
        before = self._object.copy()
        try:
            text = self._object.decompress(data, max_length)
        except zlib.error as error:
            self._error, self.needs_input = error, False
            if text := _until_damage(before, data):
                return text
            raise
        # If ``max_length`` was reached, zlib may hold more output.
        self.needs_input = not self._object.unconsumed_tail and len(text) < max_length
        return text


def _until_damage(decompressor: zlib._Decompress, data: bytes) -> bytes:
    """Return the text of ``data`` before the place where decompression fails, except for the last few bytes."""
    parts: list[bytes] = []
    try:
        while data:
            parts.append(decompressor.decompress(data, 256))
            data = decompressor.unconsumed_tail
    except zlib.error:
        pass
    return b"".join(parts)


def _zstd(path: Location) -> tuple[Callable[[], _Decompressor], type[Exception]]:
    if sys.version_info >= (3, 14):
        from compression.zstd import ZstdDecompressor, ZstdError
    else:
        try:
            from backports.zstd import ZstdDecompressor, ZstdError
        except ImportError as error:
            raise MissingError(f"{path}: Zstandard needs backports.zstd: pip install 'rankscope[analysis]'") from error
    return ZstdDecompressor, ZstdError
