"""Export of a window as a file for Perfetto, beside the server."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Final

from rankscope.analysis.perfetto.export import export_perfetto
from rankscope.analysis.perfetto.selection import Selection
from rankscope.dashboards.data.progress import Progress, Tell
from rankscope.runs.paths import attempt_dir

EXPORT: Final = "window.json.gz"
_QUICK: Final = 5
"""Compression level; higher levels make the file a few percent smaller in twice the time."""


def export_window(run: Path, attempt: int, steps: range, folder: Path, tell: Tell) -> None:
    """Write ``EXPORT``, without the verdict, which is about the whole run. Raises ``RankscopeError`` and ``OSError``."""

    def progress(what: str, done: int, of: int) -> None:
        tell(Progress(what, done, of))

    with (folder / EXPORT).open("wb") as file, gzip.GzipFile("", "wb", _QUICK, file, mtime=0) as packed:
        selection = Selection(first=steps.start, past=steps.stop)
        export_perfetto([attempt_dir(run, attempt)], packed.write, selection=selection, verdict=False, progress=progress)
