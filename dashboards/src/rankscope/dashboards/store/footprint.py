"""Detection of changes in a run directory without reading its files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankscope.runs.paths import activity_file, findings_file, inspector_dir, memory_dir, reports_dir, verdict_file

TRACES: Final = "traces"
"""Folder of raw traces: only captured windows use them, and newer ones replace older ones."""
CONTROL: Final = "control"
"""Folder of requests, which contain no data of the run."""

LOGS: Final = inspector_dir(Path()).name
"""Folder of the logs that helpers read: what matters in them is in records."""

VERDICT: Final = verdict_file(Path()).name
"""Verdict of an earlier analysis, which is no data of the run."""

SNAPSHOTS: Final = memory_dir(Path()).name
"""Folder of snapshots of GPU memory, which other programs show."""

REPORTS: Final = reports_dir(Path(), 0).name
"""Folder of reports to the planner of windows, which ranks renew also while the job hangs."""

NOT_SHOWN: Final = frozenset({TRACES, CONTROL, LOGS, VERDICT, SNAPSHOTS, REPORTS})

ACTIVITY: Final = activity_file(Path(), 0, 0).name
"""What a rank that stands still is doing: it is refreshed while the run is silent."""

FINDINGS: Final = findings_file(Path()).name
"""What a watcher found: pages show it, but no verdict depends on it."""

NO_PROGRESS: Final = (ACTIVITY, FINDINGS, "stacks-", "gpu-")
"""Beginnings of the names of files that grow although the job may hang or has ended: they are samples of it, or about it."""

STREAMS: Final = (".jsonl", ".npy")
"""Suffixes of record files, which only grow."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Digest of the names, sizes and modification times of a run's files."""

    revision: str
    standing: str
    """Digest that changes with new streams and changed metadata, but not when record files grow."""
    newest_unix_ns: int
    """Latest modification of any file that shows progress; see ``NO_PROGRESS``."""
    size_bytes: int = 0


def footprint(run: Path, streams: tuple[str, ...] = ("",), *, traces: bool = False) -> Footprint:
    """Return the footprint of the files of ``run`` whose names begin with one of ``streams``; ``traces`` includes raw traces.

    A folder that cannot be listed counts as empty.
    """
    entries: list[str] = []
    standing: list[str] = []
    newest = total = 0
    skipped = NOT_SHOWN - {TRACES} if traces else NOT_SHOWN
    for name, size, modified in sorted(_files(os.fspath(run), skipped)):
        if not name.rpartition("/")[2].startswith(streams):
            continue
        entry = f"{name}\0{size}\0{modified}\n"
        entries.append(entry)
        standing.append(f"{name}\n" if name.endswith((*STREAMS, ACTIVITY)) else entry)
        if not name.rpartition("/")[2].startswith(NO_PROGRESS):
            newest = max(newest, modified)
        total += size
    return Footprint(_digest(entries), _digest(standing), newest, total)


def _digest(entries: list[str]) -> str:
    return hashlib.blake2b("".join(entries).encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()


def _files(run: str, skipped: Container[str]) -> list[tuple[str, int, int]]:
    """Return name, size and modification time of each file in ``run``; those of a link are its own, as no link is followed."""
    files: list[tuple[str, int, int]] = []
    folders = [(run, "")]
    while folders:
        folder, prefix = folders.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        for entry in entries:
            if entry.name.startswith(".") or entry.name in skipped:
                continue  # files that are about to be renamed into place start with a dot
            try:
                if entry.is_dir(follow_symlinks=False):
                    folders.append((entry.path, f"{prefix}{entry.name}/"))
                else:
                    status = entry.stat(follow_symlinks=False)
                    files.append((f"{prefix}{entry.name}", status.st_size, status.st_mtime_ns))
            except OSError:
                continue  # retention removed it meanwhile
    return files
