"""Telling whether a run directory has changed, without reading it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NOT_EVIDENCE: Final = frozenset({"traces", "control"})
"""Folders of a run that no page shows."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Names, sizes and modification times of a run's files, condensed."""

    revision: str
    newest_unix_ns: int
    """Latest modification of any file."""


def footprint(run: Path) -> Footprint:
    """Footprint of the files of ``run``. A folder that cannot be listed counts as empty."""
    digest = hashlib.blake2b(digest_size=12)
    newest = 0
    for name, size, modified in sorted(_files(os.fspath(run), "")):
        digest.update(f"{name}\0{size}\0{modified}\n".encode("utf-8", "surrogateescape"))
        newest = max(newest, modified)
    return Footprint(revision=digest.hexdigest(), newest_unix_ns=newest)


def _files(folder: str, prefix: str) -> Iterator[tuple[str, int, int]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name in _NOT_EVIDENCE:
            continue  # files that are about to be renamed into place start with a dot
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path, f"{prefix}{entry.name}/")
            else:
                status = entry.stat()
                yield f"{prefix}{entry.name}", status.st_size, status.st_mtime_ns
        except FileNotFoundError:
            continue  # retention removed it meanwhile
