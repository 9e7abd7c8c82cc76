"""One rank's text file in the spool folder, from which the node's exporter (or node_exporter's textfile collector) takes it.

The name of the file, ``RUN-RANK-SLOT.prom``, is the claim on the series: whoever makes it has the slot, whichever user it is.
Ranks of other runs with the same name and number take the next one.
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

from rankscope.profiler.label_text import escaped, label_text

FORGOTTEN_SECONDS: Final = 86_400.0
"""Age at which an exporter has forgotten a file (its ``--spool-forget``, unless told otherwise): then the slot is free again."""
MAX_SLOTS: Final = 512
_UNSAFE: Final = re.compile(r"^[.-]|[^A-Za-z0-9_.-]")  # no collector reads a file whose name begins with a dot
_MAX_READ: Final = 64 * 1024
_INFO: Final = re.compile(r'^rank_info\{(?:[^"\n]|"(?:[^"\\\n]|\\.)*")*\}', re.MULTILINE)
_ATTEMPT: Final = re.compile(r'[,{]attempt="(\d+)"')


@dataclass(frozen=True, slots=True)
class Claimant:
    """The rank that the series are about."""

    run: str
    run_id: str
    rank: int
    attempt: int

    def labels(self, slot: int) -> Mapping[str, str]:
        """The labels of all its series."""
        return {"run": label_text(self.run), "rank": str(self.rank), "slot": str(slot)}

    def file_name(self, slot: int) -> str:
        """Names that cannot stand in a file's name may share one; they have slots of their own then."""
        return f"{_UNSAFE.sub('_', label_text(self.run))}-{self.rank}-{slot}.prom"


class SpoolFile:
    """The file of one rank. ``render`` makes its text from the labels of all series. Raises ``OSError`` from ``write`` only.

    ``own``: a file that this rank has from before, left by a helper that was killed.
    """

    def __init__(self, folder: Path, claimant: Claimant, *, own: str | None = None) -> None:
        self.claimant = claimant
        self.path: Path | None = None
        """The file, once there is one."""
        self._folder = folder
        self._own = own
        self._slot = 0
        self._last: tuple[int, int] | None = None
        # Not *.prom: no collector may read it half written. The pid: nobody else has it open.
        self._temporary = folder / f".{claimant.file_name(0)}.{os.getpid()}"

    def write(self, render: Callable[[Mapping[str, str]], str]) -> None:
        """Replace the file, so that a reader sees the old one or the new one; claim a slot if this rank has none (any more)."""
        try:
            if self._has_slot():
                self._prepare(render(self.claimant.labels(self._slot)))
                self._take(self._folder / self.claimant.file_name(self._slot))
            else:
                self._claim(render)
        finally:
            self._temporary.unlink(missing_ok=True)

    def remove(self) -> None:
        """The rank said goodbye: it has nothing more to report, and the slot is free."""
        if self.path is not None and self._has_slot():
            with suppress(OSError):
                self.path.unlink()

    def _has_slot(self) -> bool:
        """Whether the file is still the one that was written last: it may have been removed, or taken over by a new attempt."""
        if self.path is None:
            return False
        with suppress(OSError):
            return _key(self.path) == self._last
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
                    self._prepare(render(self.claimant.labels(self._slot)))
                    self._take(path)
                    return
                continue
            self._prepare(render(self.claimant.labels(self._slot)))
            try:
                self._make(path)
            except FileExistsError:
                continue  # another rank was quicker
            return
        raise OSError(f"all {MAX_SLOTS} slots of {self.claimant.run} are taken")

    def _prepare(self, text: str) -> None:
        self._temporary.unlink(missing_ok=True)
        # O_EXCL: the folder may be everybody's, so nothing there is trusted, least of all a link.
        handle = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        self._last = _key(self._temporary)

    def _make(self, path: Path) -> None:
        """Let the file appear under a name that nobody has, complete. Raises ``FileExistsError`` when somebody has it."""
        try:
            path.hardlink_to(self._temporary)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
            self._temporary.replace(path)
        self.path = path

    def _take(self, path: Path) -> None:
        self._temporary.replace(path)
        self.path = path

    def _may_take(self, path: Path, status: os.stat_result) -> bool:
        """Whether a file that is there is this rank's own, of an earlier attempt of its run, or forgotten."""
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            return False
        return path.name == self._own or time.time() - status.st_mtime > FORGOTTEN_SECONDS or self._is_earlier(path)

    def _is_earlier(self, path: Path) -> bool:
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(handle, encoding="utf-8", errors="replace") as file:
                info = _INFO.search(file.read(_MAX_READ))
        except OSError:
            return False
        if info is None or (attempt := _ATTEMPT.search(info[0])) is None:
            return False
        run_id = f'run_id="{escaped(label_text(self.claimant.run_id, 512))}"'
        return re.search(rf"[,{{]{re.escape(run_id)}", info[0]) is not None and int(attempt[1]) < self.claimant.attempt


def _key(path: Path) -> tuple[int, int]:
    # Both: the number of a file that is gone is given to a new one.
    status = path.lstat()
    return status.st_ino, status.st_mtime_ns


def remove_own(folder: Path, names: Iterable[str]) -> None:
    """The job is over: remove what its vanished ranks left in the spool. Never raises ``OSError``."""
    for name in names:
        with suppress(OSError):
            # The folder may be everybody's, and root may remove everybody's files.
            status = (folder / name).lstat()
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid():
                (folder / name).unlink()
