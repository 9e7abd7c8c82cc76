"""Files and folders of a run that cannot be read."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from rankscope.runs.paths import ranks_dir
from rankscope.runs.run_files import open_run_file

SHOWN: Final = 5
"""Most unreadable files of a run to name: an unavailable file server makes thousands unreadable."""


def why_unreadable(path: Path) -> str:
    """Return the reason why a file or folder cannot be read: the error of opening it, or ``damaged``."""
    try:
        if path.suffix:
            open_run_file(path).close()
        else:
            os.scandir(path).close()
    except OSError as error:
        return error.strerror or str(error)
    return "damaged"


class UnreadableFiles:
    """Reporter of unreadable files and folders: once each with the reason, and again after they were readable."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._reported: dict[Path, frozenset[str]] = {}

    def report(self, run: Path, paths: Sequence[str]) -> None:
        """Report ``paths`` inside ``run`` that cannot be read now."""
        reported = self._reported.get(run, frozenset())
        everything = set(paths)
        new = [path for path in paths if path not in reported and everything.isdisjoint(map(str, Path(path).parents))]
        for path in new[:SHOWN]:
            self._report(f"{run / path}: {why_unreadable(run / path)}; left out, the rest of the run is followed")
        if len(new) > SHOWN:
            self._report(f"{run}: {len(new) - SHOWN} more files and folders cannot be read, and are left out")
        self._reported[run] = frozenset(paths)

    def keep(self, runs: Collection[Path]) -> None:
        """Forget all other runs."""
        self._reported = {run: reported for run, reported in self._reported.items() if run in runs}


def ranks_within(run: Path, attempt: int, paths: Iterable[str]) -> set[int]:
    """Return the ranks of ``attempt`` that ``paths`` inside the run belong to."""
    folder = ranks_dir(run, attempt)
    inside = [(run / path).relative_to(folder).parts for path in paths if (run / path).is_relative_to(folder)]
    return {int(parts[0]) for parts in inside if parts and parts[0].isdecimal()}
