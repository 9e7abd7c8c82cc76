"""Progress of a rank in profiling some steps, by incremental reading of its records."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain

import msgspec

from rankscope.cli.live.live_run import LiveRun
from rankscope.cli.live.standstill import TAIL_STEPS
from rankscope.runs.follow import StartOverError, StepFollower, StreamFollower
from rankscope.runs.paths import rank_dir
from rankscope.runs.step_columns import PROFILED


class _StepOfWindow(msgspec.Struct):
    step: int


class ProfileProgress:
    """Progress of one rank of the run's current attempt in profiling ``steps``."""

    def __init__(self, live: LiveRun, rank: int, steps: range) -> None:
        self._live, self._rank, self._steps = live, rank, steps
        folder = rank_dir(live.path, live.attempt, rank)
        self._windows, self._step_follower = StreamFollower(folder, "windows", _StepOfWindow), StepFollower(folder)
        self._profiled: set[int] = set()
        self._passed = False
        with suppress(OSError):
            # The requested steps are in the future or among the last ones.
            self._step_follower.skip(keep=TAIL_STEPS)

    def missing_steps(self) -> list[int]:
        """Return the steps without a profile in the records read so far."""
        try:
            for row in chain.from_iterable(self._windows.new(self._live.reader)):
                if row.step in self._steps:
                    self._profiled.add(row.step)
                # Windows are written in the order of their steps.
                self._passed |= row.step > self._steps[-1]
        except StartOverError:
            return self.missing_in_all_records()
        return self._unprofiled()

    def missing_in_all_records(self) -> list[int]:
        """Return the steps without a profile in any of the rank's records."""
        self._profiled |= {row.step for row in self._live.reader.windows(self._live.attempt, self._rank)} & set(self._steps)
        return self._unprofiled()

    def is_left_out(self) -> bool:
        """Return whether the ``missing_steps`` will stay so: the rank ran one without the profiler, or profiled later steps."""
        with suppress(StartOverError):
            for rows in self._step_follower.new(self._live.reader):
                selected = (rows["step"] >= self._steps.start) & (rows["step"] < self._steps.stop)
                self._passed |= bool((selected & (rows["flags"] & PROFILED == 0)).any())
        return self._passed

    def _unprofiled(self) -> list[int]:
        return [step for step in self._steps if step not in self._profiled]
