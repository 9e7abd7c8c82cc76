"""Torch's Flight Recorder in the training process: enabled before process groups are made, dumped on the helper's request.

It keeps the last collectives of this rank, also those that never end, which shows the rank that made the others hang.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import distributed as dist

from rankscope.base.atomic_files import replace_file
from rankscope.profiler.flight_files import CRASH, DURATIONS, done_file, dump_file
from rankscope.profiler.scratch import flight_prefix

ENTRIES: Final = 2000
"""Number of collectives kept: torch's own default, where it has one."""
_NEW_NAMES: Final = (2, 8)

_NCCL: Final = "nccl"
_DUMPERS: Final = {_NCCL: "_dump_nccl_trace", "gloo": "_dump_fr_trace"}
"""Torch's functions that return a pickled recorder: one for NCCL's process groups, one for all others."""
_BACKEND: Final = re.compile(r"[a-z0-9_-]{1,40}")
"""Pattern of backend names that can be part of a file name."""
_ENTRY: Final = b"record_id"
"""Bytes that a dump contains only if the recorder has recorded something."""
SETTLE_SECONDS: Final = 0.2
_dumping: Final = threading.Lock()
_DURATIONS: Final = DURATIONS.encode() + b"\n"
TIMED_ENTRIES: Final = 4000
"""Number of collectives kept where they are timed: the helper copies them, if it can before they are overwritten."""
_ID: Final = re.compile(rb"([0-9a-f-]{1,40})\n")


def prepare(scratch_dir: str | None) -> None:
    """Enable the Flight Recorder, and its dump on a watchdog timeout to a file that the helper finds. Never raises.

    Variables that are already set stay unchanged. Does nothing once there is a process group. Two variables are left unset:
    TORCH_NCCL_ENABLE_TIMING, which costs overlap, and TORCH_NCCL_DEBUG_INFO_PIPE_FILE, because torch aborts if it cannot make
    that pipe.
    """
    with suppress(Exception):
        if not dist.is_available() or dist.is_initialized():
            return
        version = tuple(int(part) for part in str(torch.__version__).split("+")[0].split(".")[:2])
        # The old names work with all versions, but newer ones warn about them on every rank.
        size, file = "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
        names = (size, file) if version < _NEW_NAMES else ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE")
        if size not in os.environ:
            timed = os.environ.get("TORCH_NCCL_ENABLE_TIMING", "") not in ("", "0")
            os.environ.setdefault(names[0], str(TIMED_ENTRIES if timed else ENTRIES))
        # Versions with a recorder per backend dump on timeout anyway, and warn about this name.
        if not _by_backend():
            os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
        if file not in os.environ:
            os.environ.setdefault(names[1], str(flight_prefix(scratch_dir, f"{os.getpid()}-{secrets.token_hex(4)}")))


def listens() -> bool:
    """Return whether there is a Flight Recorder to dump: a process group, and a torch that has a recorder for it."""
    return dist.is_available() and dist.is_initialized() and bool(_dumpers())


def listen(requests: int, scratch: Path) -> None:
    """Write a dump into ``scratch`` for every line (an id) from the pipe ``requests``, whose ownership it takes.

    A daemon thread waits in a read, without the interpreter's lock, until the pipe has no writer. It keeps no process from
    ending, and does not exist in a forked one. Never raises.
    """
    try:
        threading.Thread(target=_serve, args=(requests, scratch), name="rankscope-flight", daemon=True).start()
    except RuntimeError:  # no more threads; closing the pipe shows this to the helper
        os.close(requests)


def settle() -> None:
    """Wait up to ``SETTLE_SECONDS`` for a dump in progress: a process must not end while one of its threads is inside torch."""
    if _dumping.acquire(timeout=SETTLE_SECONDS):
        _dumping.release()


def _serve(requests: int, scratch: Path) -> None:
    # Not buffered: a buffer has a lock, which a fork or the end of the interpreter could find held.
    with suppress(OSError), os.fdopen(requests, "rb", buffering=0) as lines:
        for line in lines:
            with _dumping:
                if line == _DURATIONS:
                    dump_durations(scratch)
                elif name := _ID.fullmatch(line):
                    dump(scratch, name[1].decode())


def dump_durations(scratch: Path) -> None:
    """Dump the collectives of NCCL without their stacks, which would take most of the time. Never raises."""
    dumpers = {name: partial(make, includeStackTraces=False) for name, make in _dumpers().items() if name.startswith(_NCCL)}
    dump(scratch, DURATIONS, dumpers)


def dump_crash(scratch: Path) -> None:
    """Dump the recorder when an exception ends the script. Never raises.

    With gloo a collective that times out ends in an exception. NCCL is left out: its watchdog has written a dump by then, and
    reading its recorder queries the device.
    """
    with suppress(Exception):
        if listens():
            dump(scratch, CRASH, {backend: make for backend, make in _dumpers().items() if not backend.startswith(_NCCL)})


def dump(scratch: Path, name: str, dumpers: Mapping[str, Callable[[], bytes]] | None = None) -> None:
    """Write all recorders that are not empty into ``scratch``, then a file that marks completion. Never raises."""
    try:
        dumpers = _dumpers() if dumpers is None else dumpers
        # Read all recorders before writing any file, so that they are close to one moment.
        began = time.perf_counter_ns()
        dumps = {backend: data for backend, make in dumpers.items() if _ENTRY in (data := make())}
        took_us = (time.perf_counter_ns() - began) // 1000
        for backend, data in dumps.items():
            replace_file(dump_file(scratch, name, backend), data, sync=False)
        reason = f"{took_us} us" if dumps and name == DURATIONS else "" if dumps else _nothing(dumpers)
    except Exception as error:  # noqa: BLE001  # no error may stop training
        reason = f"{type(error).__name__}: {error}"
    with suppress(Exception):
        replace_file(done_file(scratch, name), reason.encode(errors="replace")[:500], sync=False)


def _nothing(dumpers: Mapping[str, Callable[[], bytes]]) -> str:
    if not dumpers:
        return "this torch has no Flight Recorder for it"
    return "no collective has been recorded" + (
        ", and this torch records those of NCCL alone" if list(dumpers) == [_NCCL] else ""
    )


def _dumpers() -> dict[str, Callable[..., bytes]]:
    module = sys.modules.get("torch._C._distributed_c10d")
    dumpers = {backend: make for backend, name in _DUMPERS.items() if (make := getattr(module, name, None)) is not None}
    make = _by_backend()
    return (
        dumpers if make is None else dumpers | {backend: partial(make, backend=backend) for backend in _hooked() - dumpers.keys()}
    )


def _by_backend() -> Callable[..., bytes] | None:
    """Return torch's function that dumps the recorder of a given backend; it exists from 2.15 on."""
    make: Callable[..., bytes] | None = getattr(sys.modules.get("torch._C._distributed_c10d"), _DUMPERS["gloo"], None)
    return make if "backend: str" in (getattr(make, "__doc__", None) or "") else None


def _hooked() -> set[str]:
    """Return the backends with a recorder of their own, whose collectives are recorded by a hook of torch.

    From 2.15 on they include the backend that a group of ``nccl`` consists of.
    """
    names: set[str] = set()
    with suppress(Exception):  # none of this is public
        for group in list(dist.distributed_c10d._world.pg_flight_recorder_hooks):  # type: ignore[attr-defined]  # noqa: SLF001
            names |= {group._get_backend(device).name() for device in group._device_types}  # noqa: SLF001
    return {name for name in names if _BACKEND.fullmatch(name)}
