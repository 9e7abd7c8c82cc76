"""The helper's side of the run directory: what cannot be written now is kept, within bounds, and tried again."""

from __future__ import annotations

import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from rankscope.profiler.handover import Hello
from rankscope.runs.paths import RANK_STREAMS, RankStream, rank_dir, run_file
from rankscope.runs.records import RankInfo, RunInfo
from rankscope.runs.writer import JsonLinesWriter, create_attempt, create_run, write_record

MAX_PENDING: Final = 20_000
"""Records kept while the folder cannot be written; about 10 MB."""
RETRY_SECONDS: Final = 2.0
_BATCH: Final = 500


class RunStore:
    """Writes one rank's files. Nothing here raises for what a disk may do."""

    def __init__(self, hello: Hello) -> None:
        self._hello = hello
        self._run_dir = Path(hello.settings.run_dir)
        rank = hello.rank
        self.folder = rank_dir(self._run_dir, rank.attempt, rank.rank)
        self._writers = {stream: JsonLinesWriter(self.folder, stream) for stream in RANK_STREAMS}
        self._pending: dict[RankStream, deque[bytes]] = {stream: deque() for stream in RANK_STREAMS}
        self.begun = False
        """Whether this rank has its place in the run directory."""
        self.refused = False
        """Whether this rank has no place in the run directory, or no longer one; nothing is written then."""
        self._complained = False
        self._retry_at = 0.0
        self.run = hello.run
        """Identity of the run: that of the file, once this or another rank has written it."""
        self.dropped = 0
        """Records given up because the folder could not be written for too long."""

    def add(self, stream: RankStream, *records: msgspec.Struct | bytes) -> None:
        """Take records (structs or encoded JSON); ``flush`` writes them."""
        if self.refused:
            return
        queue = self._pending[stream]
        queue.extend(record if isinstance(record, bytes) else msgspec.json.encode(record) for record in records)
        while sum(map(len, self._pending.values())) > MAX_PENDING:
            # The oldest are the likeliest to be explained by what came before the trouble.
            (queue or max(self._pending.values(), key=len)).popleft()
            self.dropped += 1

    def flush(self, *, now: bool = False) -> bool:
        """Write what is pending, unless a failure was a moment ago and not ``now``. Returns whether nothing is left."""
        if self.refused:
            return True
        if not now and time.monotonic() < self._retry_at:
            return False
        try:
            if not self._has_place():
                return True
            for stream, queue in self._pending.items():
                while queue:
                    batch = [queue[index] for index in range(min(_BATCH, len(queue)))]
                    self._writers[stream].append(*batch)
                    for _ in batch:
                        queue.popleft()
        except OSError as error:
            self._complain(error)
            return False
        return True

    def _has_place(self) -> bool:
        """Take this rank's place in the run directory, or see that it is still there. Raises ``OSError``."""
        if not self.begun:
            self._begin()
        elif _is_missing(run_file(self._run_dir)):
            # What is written now would be a run that nobody can read, and stand in the way of the next one.
            self._refuse(f"{self._run_dir} was removed; this process is no longer recorded")
        return not self.refused

    def _refuse(self, reason: str) -> None:
        self.refused = True
        for queue in self._pending.values():
            queue.clear()
        _say(f"rank {self._hello.rank.rank}: {reason}")

    def _begin(self) -> None:
        create_run(self._run_dir, self._hello.run)
        with suppress(msgspec.DecodeError):
            # Another rank, perhaps under another launcher, may have been first: it is its run then.
            self.run = msgspec.json.decode(run_file(self._run_dir).read_bytes(), type=RunInfo)
        create_attempt(self._run_dir, self._hello.attempt)
        file, rank = self.folder / "rank.json", self._hello.rank
        if not write_record(file, rank, overwrite=False) and not _is_of(rank, file):
            self._refuse(f"attempt {rank.attempt} of {self._run_dir} has this rank already; this process is not recorded")
            return
        self.begun = True

    def write_rank(self, info: RankInfo) -> bool:
        """Rewrite ``rank.json``. Returns whether there is nothing left to do about it."""
        if self.refused:
            return True
        if not self.begun:
            return False
        try:
            if not self._has_place():
                return True
            write_record(self.folder / "rank.json", info)
        except OSError as error:
            self._complain(error)
            return False
        return True

    def _complain(self, error: OSError) -> None:
        self._retry_at = time.monotonic() + RETRY_SECONDS
        if not self._complained:
            self._complained = True
            _say(f"rank {self._hello.rank.rank}: cannot write to {self._run_dir} ({error.strerror or error}); will try again")

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            with suppress(OSError):
                writer.close()


def _is_missing(file: Path) -> bool:
    try:
        file.stat()
    except FileNotFoundError:
        return True
    return False


def _is_of(rank: RankInfo, file: Path) -> bool:
    """Whether the process that ``rank`` describes is the one in ``file``: then another helper of it began, and was killed."""
    try:
        there = msgspec.json.decode(file.read_bytes(), type=RankInfo)
    except (OSError, msgspec.DecodeError):
        return False
    return (there.host, there.pid, there.start_unix_ns) == (rank.host, rank.pid, rank.start_unix_ns)


def _say(message: str) -> None:
    with suppress(OSError, ValueError):
        print(f"rankscope: {message}", file=sys.stderr, flush=True)
