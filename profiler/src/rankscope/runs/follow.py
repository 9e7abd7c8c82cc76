"""Following a stream of a run that goes on: what is new since it was read last, and nothing twice.

Of every segment it is remembered how much has been read. A line that has no end yet is left for the next time. Segments that
retention removes are simply gone. Whatever cannot be told from what was read before (a segment that shrank or is another file
now) ends the following: then all is to be read afresh, see ``StartOverError``.
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
from rankscope.runs.segments import decode_blocks, list_segments, list_streams, open_regular, read_blocks
from rankscope.runs.step_columns import row_dtype
from rankscope.runs.step_segments import Rows, Segment, joined_rows

_T = TypeVar("_T", bound=msgspec.Struct)
_Part = TypeVar("_Part")
_Place = TypeVar("_Place", bound="_Position")

Segments = Mapping[Stream, Sequence[str]]
"""Names of the segments of some streams of a rank, in the order they were written."""


def segments_of(reader: RunReader, folder: Path, streams: Sequence[Stream]) -> Segments:
    """What there is of ``streams`` in the folder of a rank. ``reader`` takes note where that cannot be read."""
    try:
        return list_streams(folder, streams)
    except FileNotFoundError:
        pass
    except OSError:
        reader.take_over(0, [folder])
    return {stream: [] for stream in streams}


class StartOverError(Exception):
    """What has been read is no longer the beginning of what there is."""


@dataclass(slots=True)
class _Position:
    """How much of a segment has been read."""

    inode: int
    size: int = 0
    """Of the file when it was read last."""
    over: bool = False
    """There is a later segment, and there was when this one was read: nothing is written to it any more."""


class _Follower(Generic[_Place, _Part]):
    """The segments of one stream in a folder, and what has been read of each."""

    def __init__(self, folder: Path, stream: Stream) -> None:
        self._folder = folder
        self._stream: Stream = stream
        self._positions: dict[str, _Place] = {}

    def new(self, reader: RunReader, segments: Segments | None = None) -> Iterator[_Part]:
        """What has been added since the last time. ``reader`` takes note of what cannot be read. Raises ``StartOverError``.

        ``segments``: those that ``segments_of`` has just found, where it has been asked already.
        """
        if segments is None:
            segments = segments_of(reader, self._folder, [self._stream])
        there = segments[self._stream]
        for name in there:
            known = self._positions.get(name)
            if known is None or not known.over:
                try:
                    yield from self._read(name, later=name != there[-1])
                except FileNotFoundError:
                    continue  # retention removed it since
                except (InputError, OSError):
                    reader.take_over(0, [self._folder / name])

    def _read(self, name: str, *, later: bool) -> Iterator[_Part]:
        status = os.stat(f"{self._folder}/{name}")  # noqa: PTH116  # of thousands of files, paths take longer than the calls
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
        """Where to begin in a segment."""
        raise NotImplementedError

    def _take(self, path: Path, position: _Place) -> Iterator[_Part]:
        """What is new of a segment that has grown."""
        raise NotImplementedError


@dataclass(slots=True)
class _LinePosition(_Position):
    read: int = 0
    """Bytes of whole lines."""


class StreamFollower(_Follower[_LinePosition, list[_T]]):
    """The records of one stream in JSON Lines in the ``folder`` of a rank or a host; ``kind`` has some of their fields."""

    def __init__(self, folder: Path, stream: Stream, kind: type[_T]) -> None:
        super().__init__(folder, stream)
        self._decoder = msgspec.json.Decoder(kind)
        self._damaged = 0

    @property
    def skipped_lines(self) -> int:
        """Lines so far that could not be used, and those that have no end."""
        return self._damaged + sum(position.read < position.size for position in self._positions.values())

    def skip(self, *, keep: int) -> None:
        """Take all that is there for read but its last ``keep`` bytes. Raises ``OSError``.

        A line that is cut by that counts among the ``skipped_lines``.
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
        with open_regular(path) as file:
            file.seek(position.read)
            for records, damaged in decode_blocks(self._whole_lines(file, position), self._decoder):
                self._damaged += damaged
                yield records
            position.size = max(position.read, file.tell())

    def _whole_lines(self, file: BinaryIO, position: _LinePosition) -> Iterator[bytes]:
        for lines, length in read_blocks(file):
            if lines.endswith(b"\n"):
                position.read += length
                yield lines


@dataclass(slots=True)
class _RowPosition(_Position):
    segment: Segment = field(kw_only=True)


class StepFollower(_Follower[_RowPosition, Rows]):
    """The rows of step records of a rank in ``folder``, and their events, as ``new_events`` has read them so far."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "steps")
        self._events = StreamFollower(folder, "events", StepEvent)

    @property
    def skipped_lines(self) -> int:
        """Rows and lines so far that could not be used, and those that have no end."""
        rows = sum(position.segment.damaged + position.segment.torn for position in self._positions.values())
        return rows + self._events.skipped_lines

    def skip(self, *, keep: int) -> None:
        """Take all rows that are there for read but the last ``keep``. Raises ``OSError``."""
        for path in (segments := list_segments(self._folder, "steps")):
            last = path == segments[-1]
            position = self._positions[path.name] = self._begin(path, path.stat().st_ino)
            position.over = not last
            with suppress(InputError):  # as damaged when it is read
                position.segment.skip(keep=keep if last else 0)

    def new_events(self, reader: RunReader, segments: Segments | None = None) -> Iterator[list[StepEvent]]:
        """The events since the last time. Called after ``new``, it has read those of all rows so far, perhaps more."""
        return self._events.new(reader, segments)

    def _begin(self, path: Path, inode: int) -> _RowPosition:
        return _RowPosition(inode, segment=Segment(path))

    def _take(self, path: Path, position: _RowPosition) -> Iterator[Rows]:
        del path
        return position.segment.read()


def last_rows(folder: Path, count: int) -> Rows:
    """The intact ones of the last ``count`` rows of a rank; of the segment before where the last has none. Raises ``OSError``."""
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
