"""Scratch folder on local memory, the memory of the ring, and the helper process that empties the ring."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from rankscope.profiler.handover import HANDOVER_FILE, RING_FILE, Handover
from rankscope.profiler.rank.gpu import flight_dump
from rankscope.profiler.rank.wrappers.hidden_helpers import HELPERS
from rankscope.profiler.ring import RingWriter
from rankscope.profiler.scratch import hold, make_scratch
from rankscope.profiler.settings import PREFIX, SITE_FOLDER

_PR_SET_PTRACER: Final = 0x59616D61
_NOEXEC_SEAL: Final = 8
"""``MFD_NOEXEC_SEAL`` of Linux 6.3 or later, which may refuse memory without it."""
_STANDARD_FILES: Final = 3
MAX_REPLACED: Final = 3
"""Largest number of killed helpers that are replaced within ``REPLACED_SECONDS``."""
REPLACED_SECONDS: Final = 600.0


class Session:
    """Resources of a running recording. Raises ``OSError`` if they cannot be set up, and then leaves nothing behind."""

    def __init__(self, handover: Handover, scratch_dir: str | None, ring: RingWriter) -> None:
        _reap()
        self.handover = handover
        self.memory: int | None = None
        """Handle of the ring's memory."""
        self._replaced = deque[float](maxlen=MAX_REPLACED)
        """Times at which a killed helper was replaced."""
        self.scratch = make_scratch(f"rank{handover.rank.rank}", scratch_dir)
        try:
            self.ring = ring
            self.memory = _shared_memory(self.scratch / RING_FILE)
            ring.share(self.memory)
            _seal_size(self.memory)
            self._memory_file = _identity(self.memory)
            (self.scratch / HANDOVER_FILE).write_bytes(msgspec.json.encode(handover))
            self._helper = self._start()
        except BaseException:
            self._close_memory()
            shutil.rmtree(self.scratch, ignore_errors=True)
            raise

    def _start(self) -> subprocess.Popen[bytes]:
        assert self.memory is not None
        return _start_helper(self.scratch, self.memory, samples=self.handover.settings.stacks_seconds is not None)

    def _close_memory(self) -> None:
        memory, self.memory = self.memory, None
        if memory is not None:
            os.close(memory)

    def has_files(self) -> bool:
        """Return whether the session's files are still open: a script may close all that it does not know, and open its own."""
        return self.memory is None or _identity(self.memory) == self._memory_file

    def helper_ended(self) -> bool:
        """Return whether the helper has exited, which it should not while this process lives."""
        ended = self._helper.poll() is not None
        if ended:
            HELPERS.discard(self._helper.pid)
        return ended

    def has_helper(self) -> bool:
        """Return whether there is a helper, after replacing one that was killed. Raises ``OSError``.

        Not replaced is one that exited by itself with an error, because it could not run, nor one after ``MAX_REPLACED`` in
        ``REPLACED_SECONDS``, because whatever kills them will kill the next.
        """
        if not self.helper_ended():
            return True
        now = time.monotonic()
        often = len(self._replaced) == MAX_REPLACED and now - self._replaced[0] < REPLACED_SECONDS
        if often or (self._helper.returncode or 0) > 0 or not self.has_files():
            return False
        self._replaced.append(now)
        self.replace_helper()
        return True

    def replace_helper(self) -> None:
        """Start another helper: it writes what is still in the ring and, later, how this process ended. Raises ``OSError``."""
        if (self._helper.returncode or 0) > 0:
            return
        if self._helper.stdin is not None:
            self._helper.stdin.close()
        self._helper = self._start()

    def close(self, *, exiting: bool = False) -> None:
        """Let the helper finish on its own, without waiting for it: now, or if ``exiting`` when this process has ended."""
        if self.helper_ended():
            # No other process removes it.
            shutil.rmtree(self.scratch, ignore_errors=True)
        self.ring.close()
        self._close_memory()
        if self._helper.stdin is not None:
            if exiting:
                # Only the kernel closes this end of the pipe: Python closes its files before the exit status is there.
                os.dup(self._helper.stdin.fileno())
            self._helper.stdin.close()
        if self._helper.returncode is None:
            # Popen would warn of a running child when it is collected, but the helper is meant to outlive this process.
            self._helper.returncode = 0

    def forget(self) -> None:
        """Close the ring and the pipe in a forked child; otherwise the helper would not notice the end of the rank."""
        self.ring.close()
        self._close_memory()
        if self._helper.stdin is not None:
            self._helper.stdin.close()
        # The child may be a data loader's worker.
        if self.handover.settings.stacks_seconds is not None:
            _allow_samples(self._helper.pid)
        self._helper.returncode = 0


def _identity(handle: int) -> tuple[int, int] | None:
    """Return what distinguishes the file that ``handle`` is from others; ``None``: it is none."""
    with suppress(OSError):
        status = os.fstat(handle)
        return status.st_dev, status.st_ino
    return None


def _shared_memory(path: Path) -> int:
    """Return a handle of new memory that can be shared: none of /dev/shm where the system can do without. Raises ``OSError``.

    Containers often have little /dev/shm, which training needs. ``path``: file to make where there is no other way.
    """
    handle = _anonymous_memory()
    if handle is None:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    if handle >= _STANDARD_FILES:
        return handle
    # A script that has closed its standard files: in the helper, its own would take the place of the memory.
    try:
        return fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, _STANDARD_FILES)
    finally:
        os.close(handle)


def _anonymous_memory() -> int | None:
    if sys.platform == "linux":
        sealable = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        for flags in (sealable | _NOEXEC_SEAL, sealable):
            with suppress(OSError):  # an older kernel, or a sandbox that forbids the call
                return os.memfd_create("rankscope-ring", flags)
    return None


def _seal_size(memory: int) -> None:
    """Forbid every process to change the size: access to memory that was cut off would raise SIGBUS in training."""
    with suppress(OSError, AttributeError):  # a file cannot be sealed
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)


def _reap() -> None:
    """Wait for the helpers of earlier sessions that have exited: each would stay a zombie until this process ends."""
    for helper in list(HELPERS):
        try:
            exited, _ = os.waitpid(helper, os.WNOHANG)
        except OSError:
            exited = helper  # the script has waited for it, or this is a forked child
        if exited:
            HELPERS.discard(helper)


def _start_helper(scratch: Path, memory: int, *, samples: bool) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise OSError("this Python does not know its own program (sys.executable is empty)")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(PREFIX)}
    environment["PYTHONPATH"] = os.pathsep.join(
        part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part != str(SITE_FOLDER)
    )
    # numpy would start a thread per core.
    environment.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    # The helper inherits the lock: a folder without a holder would look as if its helper had been killed.
    handle = hold(scratch)
    listening = flight_dump.listens()
    try:
        helper = subprocess.Popen(
            # -P: nothing in the training script's folder may shadow what the helper imports.
            [sys.executable, "-P", "-m", "rankscope.profiler.helper", str(scratch), str(memory)],
            stdin=subprocess.PIPE,
            # Pipe through which the helper requests a dump of the Flight Recorder.
            stdout=subprocess.PIPE if listening else subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
            pass_fds=[handle, memory],
        )
    finally:
        os.close(handle)
    HELPERS.add(helper.pid)
    if samples:
        _allow_samples(helper.pid)
    if helper.stdout is not None:
        flight_dump.listen(os.dup(helper.stdout.fileno()), scratch)
        helper.stdout.close()
    return helper


def _allow_samples(helper: int) -> None:
    """Let the helper and its children read the stack of this process where Yama permits that to parents only."""
    with suppress(Exception):  # without Yama the kernel does not know this call, and none is needed
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(helper), 0, 0, 0)
