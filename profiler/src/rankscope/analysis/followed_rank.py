"""Files of one rank of a run in progress, read as they grow."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.collectives.windows import Reduction
from rankscope.analysis.durations.blocks import RecentBlocks
from rankscope.analysis.evidence.step_table.rank_columns import RankColumns, Tags, TagTimes, tag_columns, tags_of, times_of_tags
from rankscope.runs.durations import DurationBlock
from rankscope.runs.follow import Segments, StepFollower, StreamFollower, segments_of
from rankscope.runs.paths import Stream, rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import CollectiveRecord, RankInfo, StepBreakdown
from rankscope.runs.segments import Skipped

_FOLLOWED: Final[tuple[Stream, ...]] = ("steps", "events", "windows", "collectives", "durations")

_SETTLED_NS: Final = 2_000_000_000
"""Age from which a change of a folder is told from the next one by its time: file systems resolve up to two seconds."""


class FollowedRank:
    """Followed streams of one rank, and its recent windows."""

    def __init__(self, path: Path, attempt: int, rank: int) -> None:
        self.folder = rank_dir(path, attempt, rank)
        self.steps = StepFollower(self.folder)
        self._tags: Tags = {}
        """Steps by tag, for steps whose rows have not been read yet."""
        self._tag_times: TagTimes = {}
        """Measured times of tags in these steps."""
        self.windows = StreamFollower(self.folder, "windows", StepBreakdown)
        self.collectives = StreamFollower(self.folder, "collectives", CollectiveRecord)
        self.reduction = Reduction(breakdowns=[], collectives=[])
        self.least_ranks = rank + 1
        """Number of ranks that the job has at least, by all windows so far."""
        self.durations = StreamFollower(self.folder, "durations", DurationBlock)
        self.recent = RecentBlocks()
        self._file = self.folder / "rank.json"
        self._attempt = attempt
        self._rank = rank
        self._rank_file: tuple[tuple[int, int, int], RankInfo] | None = None
        """Identity of the file that was read (inode, size, modification time), and its content."""
        self._listed: tuple[int, Segments] | None = None
        """Segments in the folder, and its modification time when they were listed."""

    def segments(self, reader: RunReader) -> Segments:
        """Return the segments of the followed streams. They are listed again when the folder has changed."""
        try:
            changed_ns = os.stat(self.folder).st_mtime_ns  # noqa: PTH116  # for thousands of folders, Path costs more
        except OSError:
            changed_ns = time.time_ns()
        if self._listed is not None and self._listed[0] == changed_ns:
            return self._listed[1]
        listed_ns, segments = time.time_ns(), segments_of(reader, self.folder, _FOLLOWED)
        # A change just before may have the same time as the next one. A folder that cannot be listed is reported each time.
        settled = listed_ns - changed_ns > _SETTLED_NS and any(segments.values())
        self._listed = (changed_ns, segments) if settled else None
        return segments

    def read_tags(self, reader: RunReader, segments: Segments) -> None:
        """Read new tags. Raises ``StartOverError``.

        Call it after reading the rows: a step's event is written before its row.
        """
        events = list(chain.from_iterable(self.steps.new_events(reader, segments)))
        for tag, steps in tags_of(events).items():
            self._tags[tag] = np.concatenate([self._tags[tag], steps]) if tag in self._tags else steps
        for tag, times in times_of_tags(events).items():
            self._tag_times.setdefault(tag, {}).update(times)

    def tagged(self, columns: RankColumns) -> RankColumns:
        """Return new entries with their tags. Tags of later steps are kept until their rows are read."""
        entries, times = self.take_tags(columns.step)
        return replace(columns, tags=entries, values=columns.values | times)

    def take_tags(self, steps: NDArray[np.int64]) -> tuple[dict[str, NDArray[np.intp]], dict[str, NDArray[np.float32]]]:
        """Return ``tag_columns`` of new entries. Tags of later steps are kept until their rows are read."""
        if not self._tags or not len(steps):
            return {}, {}
        columns, last = tag_columns(self._tags, self._tag_times, steps), int(steps[-1])
        self._tags = {tag: later for tag, tagged in self._tags.items() if len(later := tagged[tagged > last])}
        self._tag_times = {
            tag: later_times
            for tag, times in self._tag_times.items()
            if (later_times := {step: us for step, us in times.items() if step > last})
        }
        return columns

    def read_durations(self, reader: RunReader, segments: Segments, most: int) -> None:
        """Read new durations of collectives, and keep those of about the last ``most`` operations. Raises ``StartOverError``."""
        for blocks in self.durations.new(reader, segments):
            for block in blocks:
                self.recent.add(block, most)

    def info(self, reader: RunReader) -> RankInfo | None:
        """Return the rank's description from ``rank.json``, read again whenever the file was replaced."""
        try:
            status = self._file.stat()
        except OSError:
            return reader.rank(self._attempt, self._rank)
        now = (status.st_ino, status.st_size, status.st_mtime_ns)
        if self._rank_file is None or self._rank_file[0] != now:
            read = reader.rank(self._attempt, self._rank)
            self._rank_file = None if read is None else (now, read)
        return None if self._rank_file is None else self._rank_file[1]

    @property
    def skipped(self) -> Skipped:
        """Places in files that were skipped because they are damaged."""
        return self.steps.skipped | self.windows.skipped | self.collectives.skipped | self.durations.skipped
