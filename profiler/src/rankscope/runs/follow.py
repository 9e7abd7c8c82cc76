"""Incremental reading of a stream of a live run: each call returns the new records, and no record twice.

A follower remembers how much of each segment it has read. A line without its newline is left for the next call. Segments that
retention removes are ignored. If a segment shrank or was replaced by another file, following ends: the caller must read
everything again, see ``StartOverError``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

import msgspec
import numpy as np

from rankscope.base.errors import InputError
from rankscope.runs.paths import Stream
from rankscope.runs.reader import RunReader
from rankscope.runs.records import StepEvent
from rankscope.runs.run_files import open_run_file
from rankscope.runs.segments import Skipped, add_skipped, decode_blocks, list_segments, list_streams, read_blocks
from rankscope.runs.step_columns import row_dtype
from rankscope.runs.step_segments import Rows, Segment, joined_rows

_T = TypeVar("_T", bound=msgspec.Struct)
_Part = TypeVar("_Part")
_Place = TypeVar("_Place", bound="_Position")

Segments = Mapping[Stream, Sequence[str]]
"""Names of the segments of some streams of a rank, in the order they were written."""


def segments_of(reader: RunReader, folder: Path, streams: Sequence[Stream]) -> Segments:
    """Return the segments of ``streams`` in the folder of a rank. ``reader`` records a folder that cannot be read."""
    try:
        return list_streams(folder, streams)
    except FileNotFoundError:
        pass
    except OSError:
        reader.take_over({}, [folder])
    return {stream: [] for stream in streams}


class StartOverError(Exception):
    """The records read so far are no longer the beginning of the stream."""


@dataclass(slots=True)
class _Position:
    """Position up to which a segment has been read."""

    inode: int
    size: int = 0
    """Size of the file when it was read last."""
    over: bool = False
    """True if a later segment existed when this one was read last: it is not written to any more."""


class _Follower(Generic[_Place, _Part]):
    """Segments of one stream in a folder, and the position read in each."""

    def __init__(self, folder: Path, stream: Stream) -> None:
        self._folder = folder
        self._stream: Stream = stream
        self._positions: dict[str, _Place] = {}

    def new(self, reader: RunReader, segments: Segments | None = None) -> Iterator[_Part]:
        """Yield what was added since the last call. ``reader`` records unreadable files. Raises ``StartOverError``.

        ``segments``: result of ``segments_of``, where the caller already has it.
        """
        if segments is None:
            segments = segments_of(reader, self._folder, [self._stream])
        names = segments[self._stream]
        for name in names:
            position = self._positions.get(name)
            if position is None or not position.over:
                try:
                    yield from self._read(name, later=name != names[-1])
                except FileNotFoundError:
                    continue  # retention removed it since
                except (InputError, OSError):
                    reader.take_over({}, [self._folder / name])

    def _read(self, name: str, *, later: bool) -> Iterator[_Part]:
        status = os.stat(f"{self._folder}/{name}")  # noqa: PTH116  # for thousands of files, Path costs more than the call
        position = self._positions.get(name)
        if position is None:
            position = self._positions[name] = self._begin(self._folder / name, status.st_ino)
        if position.inode != status.st_ino or status.st_size < position.size:
            raise StartOverError
        if status.st_size > position.size:
            yield from self._take(self._folder / name, position)
            position.size = max(position.size, status.st_size)
        position.over = later

    def _begin(self, path: Path, inode: int) -> _Place:
        """Return the position at which to begin in a segment."""
        raise NotImplementedError

    def _take(self, path: Path, position: _Place) -> Iterator[_Part]:
        """Yield the new part of a segment that has grown."""
        raise NotImplementedError


@dataclass(slots=True)
class _LinePosition(_Position):
    read: int = 0
    """Bytes of whole lines read."""


class StreamFollower(_Follower[_LinePosition, list[_T]]):
    """Follower of one JSON Lines stream in the ``folder`` of a rank or host; ``kind`` has some or all of the records' fields."""

    def __init__(self, folder: Path, stream: Stream, kind: type[_T]) -> None:
        super().__init__(folder, stream)
        self._decoder = msgspec.json.Decoder(kind)
        self._damaged: Skipped = {}

    @property
    def skipped(self) -> Skipped:
        """Lines so far that could not be used, and those without a newline at the ends of segments."""
        skipped_lines = self._damaged.copy()
        for name, position in self._positions.items():
            if position.read < position.size:
                add_skipped(skipped_lines, self._folder / name, [position.read])
        return skipped_lines

    def skip(self, *, keep: int) -> None:
        """Mark everything as read but the last ``keep`` bytes of the last segment. Raises ``OSError``.

        A line that this cuts counts among those ``skipped``.
        """
        for path in (segments := list_segments(self._folder, self._stream)):
            status = path.stat()
            last = path == segments[-1]
            read = max(0, status.st_size - keep) if last else status.st_size
            self._positions[path.name] = _LinePosition(status.st_ino, size=read, read=read, over=not last)

    def _begin(self, path: Path, inode: int) -> _LinePosition:
        del path
        return _LinePosition(inode)

    def _take(self, path: Path, position: _LinePosition) -> Iterator[list[_T]]:
        with open_run_file(path) as file:
            file.seek(position.read)
            for records, damaged in decode_blocks(self._whole_lines(file, position), self._decoder, position.read):
                add_skipped(self._damaged, path, damaged)
                yield records
            position.size = max(position.read, file.tell())

    def _whole_lines(self, file: BinaryIO, position: _LinePosition) -> Iterator[tuple[bytes, int]]:
        for lines, length in read_blocks(file):
            if lines.endswith(b"\n"):
                position.read += length
                yield lines, length


@dataclass(slots=True)
class _RowPosition(_Position):
    segment: Segment = field(kw_only=True)


class StepFollower(_Follower[_RowPosition, Rows]):
    """Follower of the step rows of a rank in ``folder`` (``new``) and of their events (``new_events``)."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "steps")
        self._events = StreamFollower(folder, "events", StepEvent)

    @property
    def skipped(self) -> Skipped:
        """Rows and lines so far that could not be used, and those at the ends of segments that are torn."""
        rows = {
            path: skipped_rows for position in self._positions.values() for path, skipped_rows in position.segment.skipped.items()
        }
        return rows | self._events.skipped

    def skip(self, *, keep: int) -> None:
        """Mark all rows as read but the last ``keep`` of the last segment. Raises ``OSError``."""
        for path in (segments := list_segments(self._folder, "steps")):
            last = path == segments[-1]
            position = self._begin(path, path.stat().st_ino)
            with suppress(InputError):  # reported when the segment is read
                position.segment.skip(keep=keep if last else 0)
            position.over = not last
            self._positions[path.name] = position

    def new_events(self, reader: RunReader, segments: Segments | None = None) -> Iterator[list[StepEvent]]:
        """Yield the events since the last call. Called after ``new``, they include the events of all rows read so far."""
        return self._events.new(reader, segments)

    def _begin(self, path: Path, inode: int) -> _RowPosition:
        return _RowPosition(inode, segment=Segment(path))

    def _take(self, path: Path, position: _RowPosition) -> Iterator[Rows]:
        del path
        return position.segment.read()


def last_rows(folder: Path, count: int) -> Rows:
    """Return the intact ones of the last ``count`` rows of a rank's last segment. Raises ``OSError``.

    Where that segment has none, return those of the segment before.
    """
    rows = np.empty(0, row_dtype())
    for path in reversed(list_segments(folder, "steps")[-2:]):
        segment = Segment(path)
        with suppress(InputError):  # damaged
            segment.skip(keep=count)
            if blocks := list(segment.read()):
                rows = joined_rows(blocks)
        if len(rows):
            break
    return rows
