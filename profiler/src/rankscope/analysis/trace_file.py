"""A trace file as bytes: plain or gzip, bounded, every failure a sentence with the file's name in it."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path
from typing import BinaryIO, Final

from rankscope.runs.errors import InputError
from rankscope.runs.segments import open_regular

MAX_BYTES: Final = 8 * 1024**3
"""Larger (decompressed) is refused: it is a bomb, or will not fit in memory as events."""

_CHUNK: Final = 4 * 1024 * 1024
_GZIP_MAGIC: Final = b"\x1f\x8b"

# Some Kineto versions print float fields as C does, which is not JSON.
_NOT_A_NUMBER = re.compile(rb"(?<=[:,\[])(\s*)[-+]?(?:nan|inf(?:inity)?)(?:\([a-z]*\))?(?=\s*[,}\]])", re.IGNORECASE)


def read_trace_bytes(path: Path, *, limit: int = MAX_BYTES) -> bytes:
    """The JSON text of a trace. Raises ``InputError`` when the file is missing, empty, truncated or over ``limit`` bytes."""
    try:
        if path.is_dir():
            raise InputError(path, "a folder, not a trace file")
        with open_regular(path) as file:
            packed = file.read(2) == _GZIP_MAGIC
            file.seek(0)
            data = _read(path, file, packed=packed, limit=limit)
    except FileNotFoundError as error:
        raise InputError(path, "no such file") from error
    except EOFError as error:
        raise InputError(path, "truncated: the gzip data ends before its end marker") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(path, f"damaged gzip data: {error}") from error
    except OSError as error:
        raise InputError(path, error.strerror or str(error)) from error
    if not data.strip(b" \t\r\n\0"):
        raise InputError(path, "the file is empty")
    return data


def _read(path: Path, file: BinaryIO, *, packed: bool, limit: int) -> bytes:
    data = bytearray()
    source = gzip.GzipFile(fileobj=file) if packed else file
    while chunk := source.read(_CHUNK):
        if len(data) + len(chunk) > limit:
            raise InputError(path, f"more than {limit / 1024**3:g} GiB of JSON: too large to analyse")
        data += chunk
    return bytes(data)


def repair(data: bytes) -> bytes:
    """JSON text with what Kineto is known to get wrong put right: ``nan`` and ``inf`` as values, names that are not UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        data = data.decode(errors="replace").encode()
    return _NOT_A_NUMBER.sub(rb"\1null", data)
