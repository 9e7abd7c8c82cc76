"""Segments on disk: listing those of a stream, and reading lines of JSON Lines; other files are ignored."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, TypeVar, cast

import msgspec

from rankscope.runs.paths import Stream, suffix_of

T = TypeVar("T", bound=msgspec.Struct)

MAX_LINE_BYTES: Final = 4 * 1024 * 1024
"""Maximum length of a line: a longer one is damage, as no record comes near this."""

BLOCK_BYTES: Final = 256 * 1024
"""Size of a read: this much text and the records made of it fit into a processor's cache."""


UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of decoding arbitrary bytes as JSON; the last one is raised for deeply nested JSON."""


def list_segments(folder: Path, stream: Stream) -> list[Path]:
    """Return the segments of a stream in ``folder``, in the order they were written.

    Raises ``OSError`` where the folder cannot be listed; ``glob`` would return no names.
    """
    return [folder / name for name in list_streams(folder, [stream])[stream]]


def list_streams(folder: Path, streams: Collection[Stream]) -> dict[Stream, list[str]]:
    """Return the names of the segments of several streams, in the order they were written; reads the folder once.

    Raises ``OSError``.
    """
    segments: dict[Stream, list[tuple[int, str]]] = {stream: [] for stream in streams}
    for name in os.listdir(folder):  # noqa: PTH208  # thousands of folders, and only names are needed
        match = _SEGMENT.fullmatch(name)
        if match is None:
            continue
        stream = cast("Stream", match[1])
        if stream in segments and match[3] == suffix_of(stream):
            segments[stream].append((int(match[2]), name))
    return {stream: [name for _, name in sorted(names)] for stream, names in segments.items()}


_SEGMENT: Final = re.compile(r"([a-z]+)-(\d{1,9})\.(jsonl|npy)")


def number_of(segment: Path) -> int:
    """Return the number of a segment that ``list_segments`` found."""
    return int(segment.stem.rpartition("-")[2])


def read_blocks(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of whole lines from the position of ``file``, each with its number of bytes in the file.

    A last block holds the rest that has no newline (yet). The beginning of a line that is too long is replaced by a NUL byte, so
    the line is no record.
    """
    partial_line, length = b"", 0
    while data := file.read(BLOCK_BYTES):
        end = data.rfind(b"\n") + 1
        if end:
            yield partial_line + data[:end], length + end
            partial_line, length = data[end:], len(data) - end
        else:
            partial_line, length = partial_line + data if length < MAX_LINE_BYTES else b"\0", length + len(data)
    if partial_line:
        yield partial_line, length


def skip_lines(file: BinaryIO, is_before: Callable[[bytes], bool]) -> int:
    """Move ``file`` to a line, at most ``BLOCK_BYTES`` ahead of the first one that is not ``is_before``; return its position.

    Lines ascend. A file of a week is searched in some twenty reads.
    """
    first, last = 0, os.fstat(file.fileno()).st_size // BLOCK_BYTES
    while first < last:
        middle = (first + last + 1) // 2
        file.seek(middle * BLOCK_BYTES)
        file.readline(MAX_LINE_BYTES)  # its end
        if is_before(file.readline(MAX_LINE_BYTES)):
            first = middle
        else:
            last = middle - 1
    file.seek(first * BLOCK_BYTES)
    if first:
        file.readline(MAX_LINE_BYTES)
    return file.tell()


Skipped = dict[Path, tuple[int, int]]
"""Number of lines or rows that could not be used, by file, and the position of the first in bytes."""


def add_skipped(skipped: Skipped, path: Path, places: Sequence[int]) -> None:
    """Add the positions of further lines or rows of a file that could not be used."""
    if places:
        count, first = skipped.get(path, (0, places[0]))
        skipped[path] = count + len(places), first


def decode_blocks(
    blocks: Iterable[tuple[bytes, int]], decoder: msgspec.json.Decoder[T], begin: int = 0
) -> Iterator[tuple[list[T], list[int]]]:
    """Decode the blocks of ``read_blocks``, the first of which begins at byte ``begin``.

    Yield the records of each block and the positions, in bytes, of its lines that could not be used.
    """
    for block, length in blocks:
        end = begin + length
        try:
            records = decoder.decode_lines(block)
            if len(records) == _records_in(block):
                yield records, []
                begin = end
                continue
        except UNDECODABLE:
            pass
        records, damaged, place = [], [], begin
        *lines, partial_line = block.split(b"\n")
        remaining = len(block)
        for line in lines:
            if (record := _decoded(decoder, line)) is None:
                damaged.append(place)
            else:
                records.append(record)
            remaining -= len(line) + 1
            # From the end, because the beginning of a line that is too long is not in the block.
            place = end - remaining
        yield records, [*damaged, place] if partial_line else damaged
        begin = end


def _records_in(block: bytes) -> int | None:
    """Return the number of lines, or ``None`` unless each begins with ``{`` and ends with a newline.

    Without this check two records in one line and a line without a record would cancel out in the count.
    """
    import numpy as np  # only readers of records need numpy; writers and run listings do not

    text = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(text == _NEWLINE)
    if not block.startswith(b"{") or not block.endswith(b"\n") or (text[ends[:-1] + 1] != _BRACE).any():
        return None
    return len(ends)


_NEWLINE: Final = ord("\n")
_BRACE: Final = ord("{")


def _decoded(decoder: msgspec.json.Decoder[T], line: bytes) -> T | None:
    try:
        return decoder.decode(line)
    except UNDECODABLE:
        return None
