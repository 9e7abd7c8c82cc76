"""Lock on local memory for one helper per host and run; it is released when its holder ends, even by SIGKILL."""

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
    """Lock that every helper of a run on a host tries to take, and one holds. Raises ``OSError`` only from ``take``.

    There are two files. The holder locks ``lock``. All candidates share a lock on ``present``, so that the last one to leave can
    detect that it is the last. The names let ``scratch.sweep`` remove the folder that killed helpers left behind.
    """

    def __init__(self, run_id: str, *, base: Path | None = None) -> None:
        if base is None:
            base = LOCAL_MEMORY if os.access(LOCAL_MEMORY, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
        # Hashed: a run id may contain any character, and must not be visible to other users.
        key = hashlib.sha256(run_id.encode(errors="replace")).hexdigest()[:24]
        self._folder = base / f"rankscope-{os.getuid()}-host-{key}"
        self._lock = self._folder / "lock"
        self._present = self._folder / "present"
        self._holding: int | None = None
        self._presence: int | None = None

    def take(self) -> bool:
        """Try to become the holder; return whether this succeeded. Raises ``OSError`` if the lock cannot exist here."""
        assert self._holding is None
        try:
            self._join()
            handle = os.open(self._lock, _FLAGS, 0o600)
        except FileNotFoundError:
            return False  # the last to leave has just removed the folder
        if not try_lock(handle):
            os.close(handle)
            return False
        self._holding = handle
        if not self.is_held():
            self.release()
            return False
        return True

    def _join(self) -> None:
        if self._presence is not None and _is_still(self._presence, self._present):
            return
        with suppress(FileExistsError):
            self._folder.mkdir(mode=0o700)
        status = self._folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            # The parent folder is world-writable.
            raise PermissionError(errno.EPERM, "it is not a folder of this user", str(self._folder))
        self._close_presence()
        self._presence = os.open(self._present, _FLAGS, 0o600)
        try_lock(self._presence, shared=True)

    def is_held(self) -> bool:
        """Return whether this is the holder of the current lock file, which may have been removed or replaced."""
        return self._holding is not None and _is_still(self._holding, self._lock)

    def note(self, word: bytes) -> bool:
        """Leave a word in the lock file for later holders. Return whether it is new: no earlier holder left it."""
        if self._holding is None:
            return False
        with suppress(OSError):
            noted = os.pread(self._holding, 4096, 0)
            if word in noted.split():
                return False
            os.pwrite(self._holding, word + b"\n", len(noted))
        return True

    def release(self) -> None:
        """Release the lock. It may be taken again later."""
        if self._holding is not None:
            handle, self._holding = self._holding, None
            os.close(handle)

    def leave(self) -> None:
        """Leave for good; the last candidate removes the files."""
        self.release()
        if self._presence is not None and _is_still(self._presence, self._present) and try_lock(self._presence):
            with suppress(OSError):
                self._lock.unlink(missing_ok=True)
                self._present.unlink()
                self._folder.rmdir()
        self._close_presence()

    def _close_presence(self) -> None:
        if self._presence is not None:
            handle, self._presence = self._presence, None
            os.close(handle)


def _is_still(handle: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), file.lstat())
    except OSError:
        return False
