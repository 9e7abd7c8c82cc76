"""Detection of live ranks that record no step while a command waits for them."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Final

from rankscope.base.text import ranks_text
from rankscope.cli.live.live_run import LiveRun
from rankscope.runs.follow import last_rows
from rankscope.runs.paths import rank_dir
from rankscope.runs.segments import list_segments

TAIL_STEPS: Final = 50
"""Number of a rank's last step records that are read."""
STEPS: Final = 3
"""Minimum wait, in typical steps, to distinguish a hang from a long step."""


class Standstill:
    """Step progress of the live ranks since this object was made, from the records that the ranks' helpers write."""

    def __init__(self, live: LiveRun) -> None:
        self._live = live
        self._began = time.monotonic()
        self._written = {folder: _last_segment(folder) for folder in self._folders(live.ranks).values()}

    def ranks(self) -> list[int]:
        """Return the live ranks that have written no step record since."""
        folders = self._folders(self._live.ranks)
        # Folders of an attempt that began since are not in _written: its ranks count as moving.
        return [
            rank for rank, folder in folders.items() if folder in self._written and _last_segment(folder) == self._written[folder]
        ]

    def explained(self) -> str | None:
        """Return a message on the ranks without progress and a next step; ``None`` if all have progress."""
        still = self.ranks()
        if not still:
            return None
        waited = time.monotonic() - self._began
        last, usual = self._last(still[0])
        subject = "no rank has"
        if len(still) < len(self._live.ranks):
            subject = f"{ranks_text(still)} {'has' if len(still) == 1 else 'have'} not"
        text = f"{subject} finished a step in the {waited:.0f} s that this waited"
        if last is not None and usual is not None:
            text += f" (rank {still[0]}'s last is step {last}; its steps took {_seconds(usual)} before)"
            if waited < STEPS * usual:
                return f"{text}; wait longer than a few of its steps, with --wait"
        asking = f"rankscope capture {shlex.quote(str(self._live.path))} --flight-recorder"
        return f"{text}; if the job hangs, `{asking}` has the ranks write which collective they wait in"

    def _folders(self, ranks: Sequence[int]) -> dict[int, Path]:
        return {rank: rank_dir(self._live.path, self._live.attempt, rank) for rank in ranks}

    def _last(self, rank: int) -> tuple[int | None, float | None]:
        """Return the last recorded step of a rank, and the mean seconds of its last steps; ``None``: cannot be read."""
        with suppress(OSError):
            rows = last_rows(self._folders([rank])[rank], TAIL_STEPS)
            if len(rows):
                # Not the median: a host that runs ahead of its device waits for it at some steps only.
                return int(rows["step"][-1]), mean(rows["wall_us"].tolist()) / 1e6
        return None, None


def _last_segment(folder: Path) -> tuple[str, int] | None:
    """Return the name and size of the last segment of steps; ``None`` if there is none or it cannot be read."""
    with suppress(OSError):
        segments = list_segments(folder, "steps")
        if segments:
            return segments[-1].name, segments[-1].stat().st_size
    return None


def _seconds(time_s: float) -> str:
    return f"{time_s:.0f} s" if time_s >= 10 else f"{time_s:.2g} s"
