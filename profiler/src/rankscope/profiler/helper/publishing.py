"""The helper's duty to publish the rank's metrics: a text file in the spool folder, renewed every second."""

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
    """Counts what the rank does and keeps its file up to date."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._totals = Totals()
        self._file: SpoolFile | None = None
        self._noted: Path | None = None
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
        file = self._file_of(Path(folder), Claimant(run.name or run.run_id, run.run_id, rank.rank, rank.attempt))
        try:
            file.write(lambda labels: render(labels, samples(run, rank, self._totals)))
        except OSError as error:
            if not self._failed:
                self._failed = True
                self._around.say(f"cannot write metrics to {folder} ({error.strerror or error}); will try again")
        self._note(file)

    def end(self, *, vanished: bool) -> None:
        """Nothing more to report, and the file goes.

        That of a rank that vanished stays as long as its job: its last step's age is what an alert looks at. A crash is no
        riddle: the launcher has reported it.
        """
        if self._file is not None and not vanished:
            self._give_back(self._file)

    def _file_of(self, folder: Path, claimant: Claimant) -> SpoolFile:
        """The file under the identity that holds now: another launcher may have been first to say whose run this is."""
        if self._file is not None and self._file.claimant != claimant:
            self._give_back(self._file)
            self._file = None
        if self._file is None:
            self._file = SpoolFile(folder, claimant, own=spooled_before(self._around.scratch))
        return self._file

    def _note(self, file: SpoolFile) -> None:
        """Tell the launcher, which removes what is left, and another helper, should this one be killed."""
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
