"""Duty of the helper to publish the rank's metrics: a text file in the spool folder, rewritten every second."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from rankscope.profiler.helper.duties import Duty, Surroundings
from rankscope.profiler.helper.published import render, samples
from rankscope.profiler.helper.totals import Totals
from rankscope.profiler.scratch import forget_spooled, note_spooled, spooled_before
from rankscope.profiler.spool import Claimant, SpoolFile
from rankscope.runs.records import StepBreakdown, StepRecord

PUBLISH_SECONDS: Final = 1.0


class Publishing(Duty):
    """Duty that sums up the rank's records and keeps its spool file up to date."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._totals = Totals()
        self._file: SpoolFile | None = None
        self._noted: Path | None = None
        self._due = 0.0
        self._failed = False

    def step(self, record: StepRecord) -> None:
        """Add a step to the totals."""
        self._totals.add_step(record)

    def breakdown(self, breakdown: StepBreakdown) -> None:
        """Add a profiled step to the totals."""
        self._totals.add_window(breakdown)

    def tick(self) -> None:
        """Rewrite the file when it is due."""
        folder = self._around.hello.settings.spool_dir
        if folder is None or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + PUBLISH_SECONDS
        run, rank = self._around.run(), self._around.info()
        file = self._file_of(Path(folder), Claimant(run.name or run.run_id, run.run_id, rank.rank, rank.attempt))
        try:
            file.write(lambda labels: render(labels, samples(run, rank, self._totals)))
        except OSError as error:
            if not self._failed:
                self._failed = True
                self._around.say(f"cannot write metrics to {folder} ({error.strerror or error}); will try again")
        self._note(file)

    def end(self, *, vanished: bool) -> None:
        """Remove the file at the end of the rank.

        The file of a rank that vanished stays until the end of its job, because alerts use the age of its last step. After a
        crash it is removed, because the launcher has reported the crash.
        """
        if self._file is not None and not vanished:
            self._give_back(self._file)

    def _file_of(self, folder: Path, claimant: Claimant) -> SpoolFile:
        """Return the file for the current identity of the run, which another launcher may have set first."""
        if self._file is not None and self._file.claimant != claimant:
            self._give_back(self._file)
            self._file = None
        if self._file is None:
            self._file = SpoolFile(folder, claimant, own=spooled_before(self._around.scratch))
        return self._file

    def _note(self, file: SpoolFile) -> None:
        """Record the file for the launcher, which removes leftovers, and for a replacement of this helper."""
        if file.path != self._noted:
            if self._noted is not None:
                forget_spooled(self._around.scratch, self._noted.name)
            if file.path is not None:
                note_spooled(self._around.scratch, file.path.name)
            self._noted = file.path

    def _give_back(self, file: SpoolFile) -> None:
        file.remove()
        if self._noted is not None:
            forget_spooled(self._around.scratch, self._noted.name)
            self._noted = None
