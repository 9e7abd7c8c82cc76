"""One rank's text file in the spool folder, which the node's exporter (or node_exporter's textfile collector) reads.

The name of the file, ``RUN-RANK-SLOT.prom``, is the claim on the series: the process that creates it owns the slot, under any
user. Ranks of other runs with the same name and number take the next slot.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankscope.base.atomic_files import replacing
from rankscope.base.exposition import escaped
from rankscope.base.regular_files import open_regular

FORGOTTEN_SECONDS: Final = 86_400.0
"""Age at which an exporter forgets a file (the default of its ``--spool-forget``): then the slot is free again."""
MAX_SLOTS: Final = 512
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
MAX_LABEL_BYTES: Final = 128
"""Limit of a label value; short, because every line of a rank's file contains the name of the run."""
_UNSAFE: Final = re.compile(r"^[.-]|[^A-Za-z0-9_.-]")  # no collector reads a file whose name begins with a dot
_MAX_READ: Final = 64 * 1024
_INFO: Final = re.compile(r'^rank_info\{(?:[^"\n]|"(?:[^"\\\n]|\\.)*")*\}', re.MULTILINE)
_ATTEMPT: Final = re.compile(r'[,{]attempt="(\d+)"')


@dataclass(frozen=True, slots=True)
class Claimant:
    """Rank that the series describe."""

    run: str
    run_id: str
    rank: int
    attempt: int

    def labels(self, slot: int) -> Mapping[str, str]:
        """Return the labels of all series of the rank."""
        return {"run": label_text(self.run), "rank": str(self.rank), "slot": str(slot)}

    def file_name(self, slot: int) -> str:
        """Return the name of the rank's file. Run names that differ only in unsafe characters share one, in different slots."""
        return f"{_UNSAFE.sub('_', label_text(self.run))}-{self.rank}-{slot}.prom"


class SpoolFile:
    """Spool file of one rank. ``render`` makes its text from the labels of all series. Raises ``OSError`` from ``write`` only.

    ``own``: name of a file of this rank that a killed helper left behind.
    """

    def __init__(self, folder: Path, claimant: Claimant, *, own: str | None = None) -> None:
        self.claimant = claimant
        self.path: Path | None = None
        """Path of the file; ``None`` until it exists."""
        self._folder = folder
        self._own = own
        self._slot = 0
        self._last: tuple[int, int] | None = None

    def write(self, render: Callable[[Mapping[str, str]], str]) -> None:
        """Replace the file atomically; claim a slot if this rank has none or has lost it."""
        if self._has_slot():
            self._publish(render)
        else:
            self._claim(render)

    def remove(self) -> None:
        """Remove the file of a rank that has ended cleanly, which frees the slot."""
        if self.path is not None and self._has_slot():
            with suppress(OSError):
                self.path.unlink()

    def _has_slot(self) -> bool:
        """Return whether the file is still the one written last: it may have been removed, or replaced by a new attempt."""
        if self.path is None:
            return False
        with suppress(OSError):
            return _key(self.path.lstat()) == self._last
        return False

    def _claim(self, render: Callable[[Mapping[str, str]], str]) -> None:
        for self._slot in range(MAX_SLOTS):
            path = self._folder / self.claimant.file_name(self._slot)
            try:
                status = path.lstat()
            except FileNotFoundError:
                pass
            else:
                if self._may_take(path, status):
                    self._publish(render)
                    return
                continue
            try:
                self._publish(render, overwrite=False)
            except FileExistsError:
                continue  # another rank was quicker
            return
        raise OSError(f"all {MAX_SLOTS} slots of {self.claimant.run} are taken")

    def _publish(self, render: Callable[[Mapping[str, str]], str], *, overwrite: bool = True) -> None:
        """Write the file of the present slot. Raises ``FileExistsError`` if it may not be overwritten."""
        path = self._folder / self.claimant.file_name(self._slot)
        with replacing(path, mode=0o644, sync=False, overwrite=overwrite) as file:
            file.write(render(self.claimant.labels(self._slot)).encode())
            file.flush()
            key = _key(os.fstat(file.fileno()))
        self.path, self._last = path, key

    def _may_take(self, path: Path, status: os.stat_result) -> bool:
        """Return whether an existing file is this rank's own, from an earlier attempt of its run, or forgotten by exporters."""
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            return False
        return path.name == self._own or time.time() - status.st_mtime > FORGOTTEN_SECONDS or self._is_earlier(path)

    def _is_earlier(self, path: Path) -> bool:
        try:
            with open_regular(path, links=False) as file:
                info = _INFO.search(file.read(_MAX_READ).decode(errors="replace"))
        except OSError:
            return False
        if info is None or (attempt := _ATTEMPT.search(info[0])) is None:
            return False
        run_id = f'run_id="{escaped(label_text(self.claimant.run_id, 512))}"'
        return re.search(rf"[,{{]{re.escape(run_id)}", info[0]) is not None and int(attempt[1]) < self.claimant.attempt


def _key(status: os.stat_result) -> tuple[int, int]:
    # Both, because the inode number of a removed file is reused.
    return status.st_ino, status.st_mtime_ns


def remove_own(folder: Path, names: Iterable[str]) -> None:
    """Remove the spool files that ranks of a finished job left behind. Never raises ``OSError``."""
    for name in names:
        with suppress(OSError):
            # The folder may be world-writable, and root could remove other users' files.
            status = (folder / name).lstat()
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid():
                (folder / name).unlink()


def label_text(name: str, max_bytes: int = MAX_LABEL_BYTES) -> str:
    """Return the name, cut to ``max_bytes``, without control characters and truncated characters."""
    # A lone surrogate (from a file name that is not UTF-8) cannot be encoded.
    encoded = name.encode(errors="replace")[:max_bytes]
    return _CONTROL.sub("?", encoded.decode(errors="ignore"))
