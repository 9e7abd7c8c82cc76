"""One helper per host and run: a lock on local memory that its holder loses when it ends, however it ends."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from rankscope.base.locks import try_lock
from rankscope.profiler.scratch import LOCAL_MEMORY

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class HostLock:
    """Tried by every helper of a run on a host, held by one. Raises ``OSError`` only from ``take``.

    There are two files: ``lock`` is locked by the holder, ``present`` is shared by all who try, so that the last one to leave
    knows that it is. Folder and lock have such names that ``scratch.sweep`` removes what killed helpers left.
    """

    def __init__(self, run_id: str, *, base: Path | None = None) -> None:
        if base is None:
            base = LOCAL_MEMORY if os.access(LOCAL_MEMORY, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
        # Hashed: a run id may hold anything, and others need not learn it.
        key = hashlib.sha256(run_id.encode(errors="replace")).hexdigest()[:24]
        self._folder = base / f"rankscope-{os.getuid()}-host-{key}"
        self._lock = self._folder / "lock"
        self._present = self._folder / "present"
        self._holding: int | None = None
        self._presence: int | None = None

    def take(self) -> bool:
        """Try to become the holder. Raises ``OSError`` when there can be no such lock here."""
        assert self._holding is None
        try:
            self._come()
            handle = os.open(self._lock, _FLAGS, 0o600)
        except FileNotFoundError:
            return False  # the last to leave has just removed the folder
        if not try_lock(handle):
            os.close(handle)
            return False
        self._holding = handle
        if not self.held():
            self._let_go()
            return False
        return True

    def _come(self) -> None:
        if self._presence is not None and _is_still(self._presence, self._present):
            return
        with suppress(FileExistsError):
            self._folder.mkdir(mode=0o700)
        status = self._folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            # The folder above is everybody's.
            raise PermissionError(errno.EPERM, "it belongs to somebody else", str(self._folder))
        self._go()
        self._presence = os.open(self._present, _FLAGS, 0o600)
        try_lock(self._presence, shared=True)

    def held(self) -> bool:
        """Whether this is the holder, and of the file that the others would try: it may have been removed, or replaced."""
        return self._holding is not None and _is_still(self._holding, self._lock)

    def note(self, word: bytes) -> bool:
        """Leave a word for later holders, once. Returns whether it is new: no holder before this one left it."""
        if self._holding is None:
            return False
        with suppress(OSError):
            there = os.pread(self._holding, 4096, 0)
            if word in there.split():
                return False
            os.pwrite(self._holding, word + b"\n", len(there))
        return True

    def release(self) -> None:
        """Let another one take it. It may be tried again later."""
        self._let_go()

    def leave(self) -> None:
        """Do not come back; whoever is last leaves nothing."""
        self._let_go()
        if self._presence is not None and _is_still(self._presence, self._present) and try_lock(self._presence):
            with suppress(OSError):
                self._lock.unlink(missing_ok=True)
                self._present.unlink()
                self._folder.rmdir()
        self._go()

    def _let_go(self) -> None:
        if self._holding is not None:
            handle, self._holding = self._holding, None
            os.close(handle)

    def _go(self) -> None:
        if self._presence is not None:
            handle, self._presence = self._presence, None
            os.close(handle)


def _is_still(handle: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), file.lstat())
    except OSError:
        return False
