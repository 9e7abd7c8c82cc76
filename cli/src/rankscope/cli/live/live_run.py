"""A run whose ranks still train: its live ranks, and requests to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import click

from rankscope.base.errors import InputError
from rankscope.base.text import printable, ranks_text
from rankscope.runs.control import ControlAnswer, ControlRequest, post
from rankscope.runs.paths import control_dir, rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import RankInfo
from rankscope.runs.world_size import recorded_world_size

SILENT_SECONDS: Final = 300.0
"""Time without a new step record after which the run does not count as training."""
JOIN_SECONDS: Final = 30.0
"""Maximum wait for further ranks, after the start of the last one that has left a record: ranks appear at their first step."""
POLL_SECONDS: Final = 0.5
_GROWTH: Final = 1.25
_MOST: Final = 10
_RANKS: Final = 50
_MAX_WORLD: Final = 1_000_000

_T = TypeVar("_T")


class LiveRun:
    """Last attempt of a run.

    Raises ``InputError`` if ``path`` is no run, the run is over, or its ranks recorded no step for ``silent_seconds`` (``None``:
    no limit, for a job that hangs). With ``may_be_over`` (the request has an answer), a run that is over is accepted with all
    its ranks.
    """

    def __init__(self, path: Path, *, silent_seconds: float | None = SILENT_SECONDS, may_be_over: bool = False) -> None:
        self.reader = RunReader(path)
        self.path = self.reader.path
        attempts = self.reader.attempts()
        if not attempts:
            raise InputError(path, "nothing has been recorded yet: no rank has finished its first step")
        self.attempt = attempts[-1]
        self.ranks: list[int] = []
        """Ranks that have left a record and had not ended when that was last read."""
        self.absent: list[int] = []
        """Ranks of the job that had left no record by then."""
        infos = self._read_ranks()
        if may_be_over and not self.ranks:
            self.ranks = sorted(infos)
        if not self.ranks:
            raise self._over(infos)
        if silent_seconds is not None and (silent := self._silent()) > silent_seconds:
            raise InputError(
                path,
                f"no step has been recorded for {silent / 60:.0f} min: the job hangs, or has vanished with its nodes. "
                "A job that hangs may answer to --flight-recorder",
            )

    def _read_ranks(self) -> dict[int, RankInfo]:
        infos = self.infos()
        world_size = recorded_world_size(self.reader.attempt(self.attempt), infos.values()) or 0
        self.ranks = sorted(rank for rank, info in infos.items() if info.end_unix_ns is None)
        self.absent = [rank for rank in range(min(world_size, _MAX_WORLD)) if rank not in infos]
        return infos

    def await_absent(self, wanted: list[int] | None, *, until: float) -> None:
        """Wait for the ``absent`` ranks among those ``wanted`` (``None``: all), as long as the job is starting.

        That is until ``JOIN_SECONDS`` after the start of the last rank that appeared, and at most half the time until ``until``
        (monotonic seconds). Raises ``InputError`` if all ranks have ended meanwhile.
        """
        infos = self.infos()
        started = max((info.start_unix_ns for info in infos.values()), default=0) / 1e9
        now = time.monotonic()
        patience = min(JOIN_SECONDS, started + JOIN_SECONDS - time.time(), (until - now) / 2)

        def awaited() -> list[int]:
            return self.absent if wanted is None else [rank for rank in self.absent if rank in wanted]

        def look() -> bool | None:
            self._read_ranks()
            return None if awaited() else True

        if awaited() and patience > 0:
            print_progress(f"waiting for {ranks_text(awaited())}: no record yet")
            poll(look, until=now + patience, ranks=len(infos))
        if awaited():
            print_progress(f"{ranks_text(awaited())} of this job: still no record; continuing without")
        if not self.ranks:
            raise self._over(self.infos())

    def infos(self) -> dict[int, RankInfo]:
        """Read the current ``rank.json`` of all ranks."""
        return self.reader.infos(self.attempt)

    def info(self, rank: int) -> RankInfo | None:
        """Read the current ``rank.json`` of one rank."""
        return self.reader.rank(self.attempt, rank)

    def has_ended(self, rank: int) -> bool:
        """Return whether the rank has recorded its end."""
        info = self.info(rank)
        return info is not None and info.end_unix_ns is not None

    def follow(self, answer: ControlAnswer) -> bool:
        """Switch to the attempt that has answered. Returns whether it is another one: then ``ranks`` changes, too."""
        # The answer is untrusted: every user with write access to the folder may have written it.
        if answer.attempt in (None, self.attempt) or answer.attempt not in self.reader.attempts():
            return False
        print_progress(f"the job has been started anew in the meantime; attempt {answer.attempt} answers, not {self.attempt}")
        self.attempt = answer.attempt
        self._read_ranks()
        return True

    def _over(self, infos: dict[int, RankInfo]) -> InputError:
        return InputError(self.path, f"the run is over ({_endings(infos)}); only a live run can be asked")

    def _silent(self) -> float:
        written = 0.0
        for rank in self.ranks:
            folder = rank_dir(self.path, self.attempt, rank)
            for path in list(folder.glob("steps-*.npy")) or [folder / "rank.json"]:
                with suppress(OSError):
                    written = max(written, path.stat().st_mtime)
        return time.time() - written

    def chosen(self, wanted: list[int] | None) -> list[int]:
        """Return the live ranks among those ``wanted`` (``None``: all). Raises ``click.BadParameter`` for any other rank."""
        if wanted is None:
            return self.ranks
        absent = sorted(set(wanted) - set(self.ranks))
        if absent:
            state = "has ended" if absent[0] in self.reader.ranks(self.attempt) else "is not in this run"
            state = "has left no record yet" if absent[0] in self.absent else state
            raise click.BadParameter(f"rank {absent[0]} {state}", param_hint="--ranks")
        return sorted(set(wanted))

    @contextmanager
    def request(self, request: ControlRequest) -> Iterator[Callable[[], None]]:
        """Post a request and yield a function to call when it has an answer; without that call it is withdrawn at the end.

        Raises ``InputError`` if this user has no permission to post.
        """
        folder = control_dir(self.path)
        if folder.is_symlink():
            raise InputError(folder, "a symbolic link; no job takes requests from there")
        try:
            path = post(self.path, request)
        except OSError as error:
            reason = f"cannot write a request here: {error.strerror or error}; requests need write access to the run"
            raise InputError(error.filename or self.path / "control", reason) from error
        answered = False

        def mark() -> None:
            nonlocal answered
            answered = True

        try:
            yield mark
        finally:
            if not answered:
                with suppress(OSError):
                    path.unlink(missing_ok=True)


def poll(look: Callable[[], _T | None], *, until: float, ranks: int) -> _T | None:
    """Poll ``look`` and return its first result, or ``None`` if it has none until ``until`` (monotonic seconds).

    The pause between polls grows, with many ``ranks`` further than with few: polling uses the job's disk.
    """
    pause, longest = POLL_SECONDS, POLL_SECONDS * min(_MOST, max(1.0, ranks / _RANKS))
    while True:
        # Poll once more when the time is up: the result may have come during the last pause.
        over = time.monotonic() >= until
        if (result := look()) is not None or over:
            return result
        time.sleep(min(pause, max(0.0, until - time.monotonic())))
        pause = min(pause * _GROWTH, longest)


def print_progress(line: str) -> None:
    """Print a line of progress to stderr, without escape sequences: it may contain untrusted text from the run."""
    click.echo(f"rankscope: {printable(line)}", err=True)


def _endings(infos: dict[int, RankInfo]) -> str:
    ended = [f"rank {rank}: {info.end_reason}" for rank, info in sorted(infos.items()) if info.end_reason is not None]
    return ", ".join(ended[:3]) + (", …" if len(ended) > 3 else "") if ended else "no rank has left a trace of itself"
