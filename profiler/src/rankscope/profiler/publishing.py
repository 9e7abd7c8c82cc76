"""The helper's duty to publish the rank's metrics: a text file in the spool folder, renewed every second."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from rankscope.profiler.duties import Duty, Surroundings
from rankscope.profiler.scratch import note_spooled
from rankscope.profiler.spool import SpoolFile, Totals, render, samples
from rankscope.runs.records import StepBreakdown, StepRecord

PUBLISH_SECONDS: Final = 1.0


class Publishing(Duty):
    """Counts what the rank does and keeps its file up to date."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._totals = Totals()
        self._file: SpoolFile | None = None
        self._due = 0.0
        self._failed = False

    def step(self, record: StepRecord) -> None:
        """Count it."""
        self._totals.add_step(record)

    def breakdown(self, breakdown: StepBreakdown) -> None:
        """Count it."""
        self._totals.add_window(breakdown)

    def tick(self) -> None:
        """Renew the file when it is time."""
        folder = self._around.hello.settings.spool_dir
        if folder is None or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + PUBLISH_SECONDS
        run, rank = self._around.run(), self._around.info()
        if self._file is None:
            self._file = SpoolFile(Path(folder), run.run_id, rank.rank)
            note_spooled(self._around.scratch, self._file.path.name)
        try:
            self._file.write(render(run.run_id, rank.rank, samples(run, rank, self._totals)))
        except OSError as error:
            if not self._failed:
                self._failed = True
                self._around.say(f"cannot write metrics to {folder} ({error.strerror or error}); will try again")

    def end(self, *, vanished: bool) -> None:
        """Nothing more to report, and the file goes.

        That of a rank that vanished stays as long as its job: its last step's age is what an alert looks at. A crash is no
        riddle: the launcher has reported it.
        """
        if self._file is not None and not vanished:
            self._file.remove()
