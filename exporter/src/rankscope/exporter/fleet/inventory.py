"""Every GPU this node ever showed, on disk: one that is gone after a reboot is missed, not forgotten."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from pathlib import Path
from typing import Final

import msgspec

from rankscope.exporter.source import GpuIdentity

logger = logging.getLogger(__name__)

FORGET_AFTER_S: Final = 30 * 86400.0

_FILE: Final = "gpus.json"
_SCHEMA: Final = "rankscope.gpus/1"
_LARGEST_BYTES: Final = 1 << 20
_SAVE_ABSENCE_S: Final = 3600.0


class Remembered(msgspec.Struct, frozen=True):
    """A GPU. ``absent_s`` is for how long exporters have run without hearing of it: no clock that jumps can age it."""

    identity: GpuIdentity
    absent_s: float = 0.0


class _File(msgspec.Struct, frozen=True):
    gpus: tuple[Remembered, ...]
    schema: str = _SCHEMA


class Inventory:
    """The GPUs by uuid, and their file ``gpus.json`` in ``folder``; None keeps them in memory only.

    A folder that cannot be read or written is logged once, and costs the memory of the next start only. A disk that hangs stops
    the writing, nothing else: files are written in a thread of their own. One thread calls the methods.
    """

    def __init__(self, folder: Path | None, *, forget_after_s: float = FORGET_AFTER_S, retry_s: float = 60.0) -> None:
        self._path = folder / _FILE if folder is not None else None
        self._forget_after_s = forget_after_s
        self._retry_s = retry_s
        self._write_at = 0.0
        self._known: dict[str, Remembered] = {}
        self._on_disk: dict[str, Remembered] = {}
        self._stamp: tuple[int, int] | None = None
        self._writer: threading.Thread | None = None
        self._complained = False
        self._read()

    def __len__(self) -> int:
        return len(self._known)

    def identities(self) -> tuple[GpuIdentity, ...]:
        """All GPUs, in the order of their index."""
        known = [remembered.identity for remembered in self._known.values()]
        return tuple(sorted(known, key=lambda identity: (identity.index, identity.uuid)))

    def see(self, identity: GpuIdentity) -> None:
        """A GPU said who it is. One remembered at the same place was replaced on purpose, and is forgotten."""
        for uuid, other in tuple(self._known.items()):
            if other.identity.pci_bus_id == identity.pci_bus_id and uuid != identity.uuid:
                logger.info("GPU %s at %s has been replaced by %s", uuid, identity.pci_bus_id, identity.uuid)
                del self._known[uuid]
        self._known[identity.uuid] = Remembered(identity)

    def pass_time(self, elapsed_s: float, present: frozenset[str]) -> None:
        """So much time has passed in which only the GPUs ``present`` were heard of; those absent for too long are forgotten."""
        for uuid, remembered in tuple(self._known.items()):
            absent_s = 0.0 if uuid in present else remembered.absent_s + elapsed_s
            if absent_s > self._forget_after_s:
                logger.info("GPU %s has been absent for %d days and is forgotten", uuid, absent_s // 86400)
                del self._known[uuid]
            elif absent_s != remembered.absent_s:
                self._known[uuid] = Remembered(remembered.identity, absent_s)

    def take_over_changes(self, present: frozenset[str]) -> None:
        """Forget what somebody took out of the file (``forget``), those in ``present`` excepted."""
        if self._path is None or self._busy() or self._stamp == _stamp(self._path):
            return
        before = self._known
        self._read()
        self._known |= {uuid: remembered for uuid, remembered in before.items() if uuid in present}

    def save(self) -> None:
        """Write the file if something changed that matters; returns at once."""
        if self._path is None or time.monotonic() < self._write_at or self._busy() or not self._differs():
            return
        content = dict(self._known)
        self._writer = threading.Thread(target=self._write, args=(self._path, content), name="inventory", daemon=True)
        self._writer.start()

    def wait(self, timeout_s: float) -> None:
        """Wait for a write that is under way."""
        if self._writer is not None:
            self._writer.join(timeout_s)

    def _busy(self) -> bool:
        return self._writer is not None and self._writer.is_alive()

    def _differs(self) -> bool:
        if self._known.keys() != self._on_disk.keys():
            return True
        return any(
            remembered.identity != self._on_disk[uuid].identity
            or abs(remembered.absent_s - self._on_disk[uuid].absent_s) >= _SAVE_ABSENCE_S
            for uuid, remembered in self._known.items()
        )

    def _read(self) -> None:
        if self._path is None:
            return
        self._stamp = _stamp(self._path)
        try:
            self._known = _load(self._path)
        except FileNotFoundError:
            self._known = {}
        except (OSError, ValueError) as error:
            self._complain(f"cannot read {self._path}: {error}")
            return
        self._on_disk = dict(self._known)

    def _write(self, path: Path, content: dict[str, Remembered]) -> None:
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            _store(path, content)
        except OSError as error:
            self._write_at = time.monotonic() + self._retry_s
            self._complain(
                f"cannot write {path}: {error.strerror or error}; GPUs that are gone at the next start will not be missed"
            )
            return
        self._on_disk, self._stamp = content, _stamp(path)
        self._complained = False

    def _complain(self, text: str) -> None:
        if not self._complained:
            logger.warning("%s", text)
        self._complained = True


def forget(folder: Path, uuid: str) -> None:
    """Take a GPU out of the inventory in ``folder``; a running exporter follows within a minute.

    Raises:
        KeyError: it is not in there.
        OSError: the file cannot be read or written.
        ValueError: the file is not an inventory.
    """
    path = folder / _FILE
    known = _load(path)
    del known[uuid]
    _store(path, known)


def _load(path: Path) -> dict[str, Remembered]:
    with path.open("rb") as file:
        content = file.read(_LARGEST_BYTES)
    try:
        decoded = msgspec.json.decode(content, type=_File)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    if decoded.schema != _SCHEMA:
        raise ValueError(f"its schema is {decoded.schema}, not {_SCHEMA}")
    return {remembered.identity.uuid: remembered for remembered in decoded.gpus}


def _store(path: Path, content: dict[str, Remembered]) -> None:
    text = msgspec.json.format(msgspec.json.encode(_File(tuple(content.values()))), indent=2) + b"\n"
    replacement = path.with_suffix(f".{os.getpid()}.new")
    try:
        with replacement.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        replacement.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            replacement.unlink()
        raise


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
