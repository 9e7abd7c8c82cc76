"""Every GPU this node ever showed, on disk: a GPU that disappears over a reboot is reported as missing."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from rankscope.base.atomic_files import remove_unfinished, replace_file
from rankscope.base.formats import unread_format
from rankscope.base.locks import lock_file
from rankscope.base.problems import ProblemLog
from rankscope.base.process import boot_id
from rankscope.base.regular_files import open_regular
from rankscope.exporter.source import GpuIdentity

logger = logging.getLogger(__name__)

FORGET_AFTER_S: Final = 30 * 86400.0

FILE_NAME: Final = "gpus.json"
SCHEMA: Final = "rankscope.gpus/1"
_LARGEST_BYTES: Final = 1 << 20
_SAVE_ABSENCE_S: Final = 3600.0
_SAVE_METERS_S: Final = 3600.0
_LOCK_WAIT_S: Final = 10.0
_LOCK_RETRY_S: Final = 0.05
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
"""Errors of a file system without locks."""


class EnergyMeter(msgspec.Struct, frozen=True):
    """Energy counter of a GPU at a monotonic time of one boot; a later smaller value shows that the GPU was reset in between."""

    energy_j: float
    boot_id: str
    monotonic_s: float


class RememberedGpu(msgspec.Struct, frozen=True, omit_defaults=True):
    """A GPU and ``absent_s``, the exporter's running time without it. Clock changes and downtime do not count."""

    identity: GpuIdentity
    absent_s: float = 0.0
    meter: EnergyMeter | None = None


class _InventoryHeader(msgspec.Struct, frozen=True):
    schema: str = SCHEMA


class _InventoryFile(msgspec.Struct, frozen=True):
    gpus: tuple[RememberedGpu, ...]
    schema: str = SCHEMA


class Inventory:
    """The GPUs by uuid, and their file ``gpus.json`` in ``folder``; None keeps them in memory only.

    A folder that cannot be read or written is logged once; GPUs that disappear before the next start are then not reported. After
    the start, a thread of its own reads and writes, so that a hanging disk blocks nothing else. Not thread-safe.
    """

    def __init__(self, folder: Path | None, *, forget_after_s: float = FORGET_AFTER_S, retry_s: float = 60.0) -> None:
        self._path = folder / FILE_NAME if folder is not None else None
        self._forget_after_s = forget_after_s
        self._retry_s = retry_s
        self._write_at = 0.0
        self._meters_due = 0.0
        self._boot_id = boot_id()
        self._gpus: dict[str, RememberedGpu] = {}
        self._on_disk: dict[str, RememberedGpu] = {}
        self._stamp: tuple[int, int] | None = None
        self._writer: threading.Thread | None = None
        self._problems = ProblemLog(
            partial(
                logger.warning,
                "known GPUs are not kept on disk, and one that disappears before the next start is not reported: %s",
            )
        )
        self._foreign = False
        self._changed_content: dict[str, RememberedGpu] | None = None
        if self._path is not None:
            self._gpus = self._read(self._path) or {}

    def __len__(self) -> int:
        return len(self._gpus)

    @property
    def durable(self) -> bool | None:
        """True if the next start will know these GPUs; None without a folder."""
        return None if self._path is None else not (self._foreign or self._problems.reason is not None)

    def identities(self) -> tuple[GpuIdentity, ...]:
        """Return all GPUs in the order of their index."""
        known_identities = [remembered.identity for remembered in self._gpus.values()]
        return tuple(sorted(known_identities, key=lambda identity: (identity.index, identity.uuid)))

    def see(self, identity: GpuIdentity) -> None:
        """Add a GPU that was identified. A different GPU at the same PCI address counts as replaced and is forgotten."""
        for uuid, other in tuple(self._gpus.items()):
            if other.identity.pci_bus_id == identity.pci_bus_id and uuid != identity.uuid:
                logger.info("GPU %s at %s has been replaced by %s", uuid, identity.pci_bus_id, identity.uuid)
                del self._gpus[uuid]
        remembered = self._gpus.get(identity.uuid, RememberedGpu(identity))
        self._gpus[identity.uuid] = msgspec.structs.replace(remembered, identity=identity, absent_s=0.0)

    def meter(self, uuid: str) -> EnergyMeter | None:
        """Return the energy counter that an exporter read last in this boot."""
        remembered = self._gpus.get(uuid)
        return (
            remembered.meter
            if remembered is not None and remembered.meter is not None and remembered.meter.boot_id == self._boot_id
            else None
        )

    def read_meters(self, energies_j: Mapping[str, float]) -> None:
        """Keep the present energy counters of these GPUs, which the next exporter compares with its first reading."""
        now = time.monotonic()
        for uuid, energy_j in energies_j.items():
            if uuid in self._gpus:
                meter = EnergyMeter(energy_j, self._boot_id, now)
                self._gpus[uuid] = msgspec.structs.replace(self._gpus[uuid], meter=meter)

    def pass_time(self, elapsed_s: float, present: frozenset[str]) -> None:
        """Add ``elapsed_s`` to the absence of all GPUs but ``present``, and forget those absent for too long."""
        for uuid, remembered in tuple(self._gpus.items()):
            absent_s = 0.0 if uuid in present else remembered.absent_s + elapsed_s
            if absent_s > self._forget_after_s:
                logger.info("GPU %s has been absent for %d days and is forgotten", uuid, absent_s // 86400)
                del self._gpus[uuid]
            elif absent_s != remembered.absent_s:
                self._gpus[uuid] = msgspec.structs.replace(remembered, absent_s=absent_s)

    def take_over_changes(self, present: frozenset[str]) -> None:
        """Forget the GPUs that another process removed from the file (``forget``), except those in ``present``.

        Starts to read such changes in the background; if ``changed``, applies those found.
        """
        if self._path is None or self._foreign or self._busy():
            return
        if self._changed_content is None:
            self._begin(self._reread, self._path)
            return
        present_gpus = {uuid: remembered for uuid, remembered in self._gpus.items() if uuid in present}
        self._gpus, self._changed_content = self._changed_content | present_gpus, None

    def changed(self) -> bool:
        """Return True if another process changed the file and the change is not applied yet."""
        return self._changed_content is not None and not self._busy()

    def save(self, *, meters: bool = False) -> None:
        """Write the file in the background if GPUs or their absence (by an hour) changed; energy hourly, or with ``meters``."""
        if self._path is None or self._foreign or time.monotonic() < self._write_at or self._busy():
            return
        if self._changed_content is None and self._differs(meters=meters or time.monotonic() >= self._meters_due):
            self._begin(self._write, self._path, dict(self._gpus))

    def wait(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` for reading or writing in progress."""
        if self._writer is not None:
            self._writer.join(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Write the GPUs and their energy as they are now, after any reading or writing in progress; wait up to ``timeout_s``."""
        until = time.monotonic() + timeout_s
        self.wait(timeout_s)
        self.save(meters=True)
        self.wait(max(0.0, until - time.monotonic()))

    def _begin(self, work: Callable[..., object], *args: object) -> None:
        self._writer = threading.Thread(target=work, args=args, name="inventory", daemon=True)
        self._writer.start()

    def _busy(self) -> bool:
        return self._writer is not None and self._writer.is_alive()

    def _differs(self, *, meters: bool) -> bool:
        if self._gpus.keys() != self._on_disk.keys():
            return True
        return any(
            remembered.identity != self._on_disk[uuid].identity
            or abs(remembered.absent_s - self._on_disk[uuid].absent_s) >= _SAVE_ABSENCE_S
            or (meters and remembered.meter != self._on_disk[uuid].meter)
            for uuid, remembered in self._gpus.items()
        )

    def _reread(self, path: Path) -> bool:
        """Read the file if another process changed it; return True if it was read."""
        if self._stamp == _stamp(path):
            return False
        self._changed_content = self._read(path)
        return self._changed_content is not None

    def _read(self, path: Path) -> dict[str, RememberedGpu] | None:
        """Return the GPUs in the file; None if it cannot be used."""
        self._stamp = _stamp(path)
        try:
            loaded = load(path)
        except FileNotFoundError:
            loaded = {}
        except OtherSchemaError as error:
            self._foreign = True
            logger.warning("%s: left unchanged, and known GPUs are kept in memory only: %s", path, error)
            return None
        except ValueError as error:
            self._put_aside(path, error)
            return None
        except OSError as error:
            self._problems.report(f"{path}: {error.strerror or error}")
            return None
        self._on_disk = loaded
        return dict(loaded)

    def _put_aside(self, path: Path, error: ValueError) -> None:
        """Rename a damaged file to ``gpus.json.bad`` for inspection; the next ``save`` writes a new one."""
        aside = path.with_name(f"{path.name}.bad")
        self._on_disk, self._stamp = {}, None
        try:
            path.replace(aside)
        except OSError as failure:
            self._foreign = True
            logger.warning("%s is damaged (%s) and cannot be renamed: %s", path, error, failure.strerror or failure)
            return
        logger.warning("%s is damaged (%s): it was renamed to %s, and a new file is started", path, error, aside.name)

    def _write(self, path: Path, content: dict[str, RememberedGpu]) -> None:
        try:
            path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            with _locked(path):
                if self._reread(path):
                    return  # writing now would restore a GPU that another process removed
                _store(path, content)
                self._on_disk, self._stamp = content, _stamp(path)
                self._meters_due = time.monotonic() + _SAVE_METERS_S
        except OSError as error:
            self._write_at = time.monotonic() + self._retry_s
            self._problems.report(f"{path}: {error.strerror or error}")
            return
        self._problems.report(None)


class OtherSchemaError(ValueError):
    """The file is an inventory with another schema version."""


def forget(folder: Path, uuid: str) -> None:
    """Remove a GPU from the inventory in ``folder``; a running exporter follows within a minute.

    Raises:
        KeyError: the inventory has no such GPU.
        OSError: the file cannot be read or written.
        ValueError: the file is not an inventory.
    """
    path = folder / FILE_NAME
    with _locked(path):
        inventory = load(path)
        del inventory[uuid]
        _store(path, inventory)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes from replacing ``path`` meanwhile. Raises ``OSError`` if one keeps it locked.

    Without it, a GPU that is forgotten between another process' reading and writing would come back.
    """
    handle = _lock(path.with_suffix(".lock"))
    try:
        if handle is not None:
            remove_unfinished(path)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _lock(path: Path) -> int | None:
    """Lock ``path`` until the returned descriptor is closed; None on a file system without locks. Raises ``OSError``."""
    deadline = time.monotonic() + _LOCK_WAIT_S
    while time.monotonic() < deadline:
        try:
            handle = lock_file(path)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return None
            raise
        if handle is not None:
            return handle
        time.sleep(_LOCK_RETRY_S)
    raise OSError(errno.EAGAIN, "another process keeps it locked", str(path))


def load(path: Path) -> dict[str, RememberedGpu]:
    """Return the GPUs in a file by uuid. Raises ``OSError``, and ``ValueError`` for a damaged file or another format."""
    with open_regular(path) as file:  # a pipe would block the start
        content = file.read(_LARGEST_BYTES)
    try:
        schema = msgspec.json.decode(content, type=_InventoryHeader).schema
        if schema != SCHEMA:
            raise OtherSchemaError(unread_format(schema, SCHEMA))
        decoded = msgspec.json.decode(content, type=_InventoryFile)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error
    return {remembered.identity.uuid: remembered for remembered in decoded.gpus}


def _store(path: Path, content: dict[str, RememberedGpu]) -> None:
    text = msgspec.json.format(msgspec.json.encode(_InventoryFile(tuple(content.values()))), indent=2) + b"\n"
    replace_file(path, text, mode=0o600)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
