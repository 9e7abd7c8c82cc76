"""A run whose ranks still train: its live ranks, and requests to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import click

from rankscope.base.errors import InputError
from rankscope.base.text import printable
from rankscope.runs.control import ControlAnswer, ControlRequest, post
from rankscope.runs.paths import control_dir, rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import RankInfo

SILENT_SECONDS: Final = 300.0
"""Time without a new step record after which the run does not count as training."""
POLL_SECONDS: Final = 0.5
_GROWTH: Final = 1.25
_MOST: Final = 10
_RANKS: Final = 50

_T = TypeVar("_T")


class LiveRun:
    """Last attempt of a run.

    Raises ``InputError`` if ``path`` is no run, the run is over, or its ranks recorded no step for ``silent_seconds`` (``None``:
    no limit, for a job that hangs). With ``may_be_over`` (the request has an answer), a run that is over is accepted with all
    its ranks.
    """

    def __init__(self, path: Path, *, silent_seconds: float | None = SILENT_SECONDS, may_be_over: bool = False) -> None:
        self.path = path
        self.reader = RunReader(path)
        attempts = self.reader.attempts()
        if not attempts:
            raise InputError(path, "nothing has been recorded yet: no rank has finished its first step")
        self.attempt = attempts[-1]
        infos = self.infos()
        self.ranks = sorted(rank for rank, info in infos.items() if info.end_unix_ns is None)
        """Ranks that had not ended when this object was made."""
        if may_be_over and not self.ranks:
            self.ranks = sorted(infos)
        if not self.ranks:
            raise InputError(path, f"the run is over ({_endings(infos)}); only a live run can be asked")
        if silent_seconds is not None and (silent := self._silent()) > silent_seconds:
            raise InputError(
                path,
                f"no step has been recorded for {silent / 60:.0f} min: the job hangs, or has vanished with its nodes. "
                "A job that hangs may answer to --flight-recorder",
            )

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
        say(f"the job has been started anew in the meantime; attempt {answer.attempt} answers, not {self.attempt}")
        self.attempt = answer.attempt
        self.ranks = sorted(rank for rank, info in self.infos().items() if info.end_unix_ns is None)
        return True

    def _silent(self) -> float:
        written = 0.0
        for rank in self.ranks:
            for path in rank_dir(self.path, self.attempt, rank).glob("steps-*.npy"):
                with suppress(OSError):
                    written = max(written, path.stat().st_mtime)
        return time.time() - written

    def chosen(self, wanted: list[int] | None) -> list[int]:
        """Return the live ranks among those ``wanted`` (``None``: all). Raises ``click.BadParameter`` for any other rank."""
        if wanted is None:
            return self.ranks
        absent = sorted(set(wanted) - set(self.ranks))
        if absent:
            known = "has ended" if absent[0] in self.reader.ranks(self.attempt) else "is not in this run"
            raise click.BadParameter(f"rank {absent[0]} {known}", param_hint="--ranks")
        return sorted(set(wanted))

    @contextmanager
    def asked(self, request: ControlRequest) -> Iterator[Callable[[], None]]:
        """Post a request and yield a function to call when it has an answer; without that call it is withdrawn at the end.

        Raises ``InputError`` if this user has no permission to post.
        """
        folder = control_dir(self.path)
        if folder.is_symlink():
            raise InputError(folder, "a symbolic link; no job takes requests from there")
        try:
            path = post(self.path, request)
        except OSError as error:
            reason = f"cannot leave a request here: {error.strerror or error}; only who may write into the run can ask"
            raise InputError(error.filename or self.path / "control", reason) from error
        answered = False

        def note() -> None:
            nonlocal answered
            answered = True

        try:
            yield note
        finally:
            if not answered:
                with suppress(OSError):
                    path.unlink(missing_ok=True)


def waited_for(look: Callable[[], _T | None], *, until: float, ranks: int) -> _T | None:
    """Poll ``look`` and return its first result, or ``None`` if it has none until ``until`` (monotonic seconds).

    The pause between polls grows, with many ``ranks`` further than with few: polling uses the job's disk.
    """
    pause, longest = POLL_SECONDS, POLL_SECONDS * min(_MOST, max(1.0, ranks / _RANKS))
    while True:
        # Poll once more when the time is up: the result may have come during the last pause.
        over = time.monotonic() >= until
        if (found := look()) is not None or over:
            return found
        time.sleep(min(pause, max(0.0, until - time.monotonic())))
        pause = min(pause * _GROWTH, longest)


def say(line: str) -> None:
    """Print a line of progress to stderr, without escape sequences: it may contain untrusted text from the run."""
    click.echo(f"rankscope: {printable(line)}", err=True)


def _endings(infos: dict[int, RankInfo]) -> str:
    ended = [f"rank {rank}: {info.end_reason}" for rank, info in sorted(infos.items()) if info.end_reason is not None]
    return ", ".join(ended[:3]) + (", …" if len(ended) > 3 else "") if ended else "no rank has left a trace of itself"
