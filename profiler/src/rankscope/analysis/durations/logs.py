"""Logs of the NCCL Inspector plugin on disk: find the files, and decode their records within bounded memory.

Each process of a job writes ``HOST-pidPID.log``: JSON objects ``header``, ``metadata`` and ``coll_perf`` or ``p2p_perf`` one
after the other (NVIDIA/nccl, ``ext-profiler/inspector``; from 2.30 on ``plugins/profiler/inspector/inspector_json.cc``). Versions
before 2.30 write no sends and receives, no ``comm_name``, and at most one collective per communicator and dump. Times are
microseconds of the host's clock; durations are from the clock of the GPU.
"""

from __future__ import annotations

import glob
import gzip
import os
import re
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import msgspec

from rankscope.base.errors import InputError
from rankscope.runs.segments import open_regular

ENABLE: Final = "set NCCL_INSPECTOR_ENABLE=1 and NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=500 when the job starts"
_SUFFIXES: Final = (".log", ".jsonl", ".log.gz", ".jsonl.gz")
_NAMED: Final = re.compile(r".+-pid\d+\.log(?:\.gz)?")
"""File names of the plugin."""
BEGIN: Final = re.compile(rb'\{\s*"header"\s*:')
"""Begin of a record: damage before it costs no more than the record that is damaged."""
_HEAD_BYTES: Final = 1 << 20
"""Size of the beginning of a long log, which names the communicators that are used at the start only."""
MOST_RECORD_BYTES: Final = 1 << 20
_USUAL_RECORD_BYTES: Final = 2048
_SHOWN: Final = 3
"""Maximum number of other files that are named in warnings."""
_LONGEST_US: Final = 86_400_000_000
_ON_DEVICE: Final = ("kernel_gpu", "kernel_cpu")
"""Values of ``coll_timing_source`` for the duration of the kernel, by the clock of the GPU or as the host saw it."""

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Rank = Annotated[int, msgspec.Meta(ge=0, le=2**24)]


class _Header(msgspec.Struct):
    id: _Text
    rank: _Rank
    n_ranks: _Rank
    comm_name: str | None = None


class _Metadata(msgspec.Struct):
    hostname: _Text
    pid: _Count
    dump_timestamp_us: _Count


class _Kernel(msgspec.Struct, gc=False):
    kernel_stop_ts: _Count = 0


class _Trace(msgspec.Struct):
    coll_start_ts: _Count = 0
    p2p_start_ts: _Count = 0
    kernel_events: list[_Kernel] = []


class _Collective(msgspec.Struct):
    coll: _Text
    coll_sn: _Count
    coll_msg_size_bytes: _Count
    coll_exec_time_us: float
    coll_timing_source: str = "kernel_gpu"
    event_trace_ts: _Trace | None = None


class _Transfer(msgspec.Struct):
    p2p: _Text
    p2p_sn: _Count
    p2p_exec_time_us: float
    p2p_timing_source: str = "kernel_gpu"
    event_trace_ts: _Trace | None = None


class _Stats(msgspec.Struct):
    coll_dropped_since_last_dump: _Count = 0
    p2p_dropped_since_last_dump: _Count = 0


class _Object(msgspec.Struct):
    header: _Header
    metadata: _Metadata
    coll_perf: _Collective | None = None
    p2p_perf: _Transfer | None = None
    dump_stats: _Stats | None = None


class LogRecord(msgspec.Struct, frozen=True, gc=False):
    """Operation in the log of one process."""

    communicator: str
    op: str
    """Operation as NCCL spells it."""
    number: int
    """Number of the operation among those of its kind on the communicator, from 0."""
    bytes: int
    duration_us: float | None
    """Duration of the kernel; ``None`` where only the host's time is known."""
    issued_us: int | None
    """Time at which the host enqueued the operation, which only verbose logs have."""
    ended_us: int
    """End; in logs that are not verbose the time of the dump after it."""
    is_p2p: bool = False


@dataclass(slots=True)
class ProcessLog:
    """Log of one process."""

    path: Path
    host: str = ""
    pid: int = -1
    records: deque[LogRecord] = field(default_factory=deque)
    communicators: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Rank and number of ranks by communicator."""
    names: dict[str, str] = field(default_factory=dict)
    """Names of communicators, where NCCL knows them."""
    first_us: int = 0
    last_us: int = 0
    damaged: int = 0
    dropped: int = 0
    """Number of operations that the plugin dropped, because they completed faster than it dumps."""
    crossed: int = 0
    """Number of records that have another rank than those before on their communicator."""
    is_clipped: bool = False
    """True if only the last records were read."""
    has_names: bool = False
    """True if the plugin writes names of communicators, and so sends and receives, too."""

    def add(self, record: _Object) -> bool:
        """Add a record; return whether it makes sense."""
        header, about = record.header, record.metadata
        if self.pid < 0:
            self.host, self.pid, self.first_us = about.hostname, about.pid, about.dump_timestamp_us
        place = (header.rank, header.n_ranks)
        if (about.hostname, about.pid) != (self.host, self.pid) or header.rank >= header.n_ranks:
            return False
        if self.communicators.setdefault(header.id, place) != place:
            self.crossed += 1
            return False
        self.has_names |= header.comm_name is not None
        if header.comm_name not in (None, "", "unknown"):
            self.names.setdefault(header.id, header.comm_name[:64])
        self.last_us = max(self.last_us, about.dump_timestamp_us)
        if record.coll_perf is not None:
            self.records.append(_collective(header.id, record.coll_perf, about.dump_timestamp_us))
        elif record.p2p_perf is not None:
            self.records.append(_transfer(header.id, record.p2p_perf, about.dump_timestamp_us))
        elif record.dump_stats is not None:
            self.dropped += record.dump_stats.coll_dropped_since_last_dump + record.dump_stats.p2p_dropped_since_last_dump
        else:
            return False
        return True

    def decode(self, piece: bytes) -> bool:
        """Add the record in ``piece``; return whether it is one and makes sense."""
        try:
            return self.add(_DECODER.decode(piece.rstrip(b" \t\r\n,]\0")))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False


def find_logs(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the logs that files, folders and patterns name, and warnings. Raises ``InputError`` where there are none."""
    found: dict[Path, None] = {}
    others: list[Path] = []
    for file in local_files(paths):
        if is_log(file):
            found[file] = None
        elif file in paths or file.name.endswith(_SUFFIXES):
            others.append(file)
    if not found:
        if any(_is_prometheus(file) for file in local_files(paths)):
            raise InputError(
                paths[0], "metrics of NCCL Inspector, which hold no single collective; set NCCL_INSPECTOR_PROM_DUMP=0"
            )
        raise InputError((*others, *paths)[0], f"not a log of NCCL Inspector; {ENABLE}")
    warnings = [f"left out: {file}: not a log of NCCL Inspector" for file in others[:_SHOWN]]
    if len(others) > _SHOWN:
        warnings.append(f"{len(others) - _SHOWN} other files left out, which are no logs of NCCL Inspector")
    return sorted(found), warnings


def local_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files that files, folders and patterns name, without hidden ones."""
    files: list[Path] = []
    for path in paths:
        names = [path] if path.exists() else map(Path, glob.iglob(os.fspath(path), recursive=True))  # noqa: PTH207
        for name in names:
            files += sorted(name.iterdir()) if name.is_dir() else [name]
    return [file for file in files if file.is_file() and not file.name.startswith(".")]


def is_log(file: Path) -> bool:
    """Return whether a file is a log of NCCL Inspector, by its name or its first bytes."""
    if _NAMED.fullmatch(file.name):
        return True
    try:
        with _open(file) as (opened, _):
            return BEGIN.match(opened.read(256).lstrip(b" \t\r\n[")) is not None
    except (OSError, EOFError, zlib.error):
        return False


def holds_logs(files: Sequence[Path]) -> bool:
    """Return whether there are logs of NCCL Inspector, or its metrics, among files."""
    return any((file.name.endswith(_SUFFIXES) or len(files) == 1) and is_log(file) for file in files) or any(
        map(_is_prometheus, files)
    )


def read_log(path: Path, *, most: int) -> ProcessLog | InputError:
    """Read the last ``most`` records of a log; an error is returned, because the other logs may do."""
    log = ProcessLog(path, records=deque(maxlen=most))
    tail = most * _USUAL_RECORD_BYTES
    try:
        with _open(path) as (file, size):
            if size > _HEAD_BYTES + tail:
                log.is_clipped = True
                _decode(log, _pieces(file, _HEAD_BYTES))
                log.records.clear()
                file.seek(size - tail)
                next(pieces := _pieces(file, tail), None)
                _decode(log, pieces)
            else:
                _decode(log, _pieces(file, None))
    except (OSError, EOFError, zlib.error) as error:
        if not log.records:
            return InputError(path, str(getattr(error, "strerror", None) or error).lower())
        log.damaged += 1
    if 4 * log.crossed > len(log.records):
        return InputError(path, f"process {log.pid} has several ranks of one communicator: only one GPU per process is supported")
    if log.records:
        log.is_clipped |= len(log.records) == most
        return log
    if log.damaged:
        return InputError(path, "no record of NCCL Inspector can be read: each has a header, metadata and coll_perf")
    return InputError(path, f"no collective in this log; {ENABLE}")


def _decode(log: ProcessLog, pieces: Iterator[tuple[bytes, bool]]) -> None:
    for piece, is_last in pieces:
        # A job that trains is in the middle of its last record.
        log.damaged += not (log.decode(piece) or is_last)


_DECODER: Final = msgspec.json.Decoder(_Object)


def _pieces(file: BinaryIO, length: int | None) -> Iterator[tuple[bytes, bool]]:
    """Yield the records of the next ``length`` bytes, undecoded, and whether each is the last. Other text between them is one."""
    left = length
    buffer = b""
    while data := file.read(_HEAD_BYTES if left is None else min(left, _HEAD_BYTES)):
        left = None if left is None else left - len(data)
        buffer += data
        begins = [found.start() for found in BEGIN.finditer(buffer)]
        if begins and buffer[: begins[0]].strip(b" \t\r\n,[\0"):
            yield buffer[: begins[0]], False
        for begin, end in pairwise(begins):
            yield buffer[begin:end], False
        buffer = buffer[begins[-1] :] if begins else buffer
        if len(buffer) > MOST_RECORD_BYTES:
            yield b"", False
            buffer = buffer[-64:]
    if buffer.strip():
        yield buffer, True


def _collective(communicator: str, perf: _Collective, dumped_us: int) -> LogRecord:
    times = perf.event_trace_ts
    issued, ended = _times(times, times.coll_start_ts if times else 0, dumped_us)
    took = _duration_us(perf.coll_exec_time_us, perf.coll_timing_source)
    return LogRecord(communicator, perf.coll, perf.coll_sn, perf.coll_msg_size_bytes, took, issued, ended)


def _transfer(communicator: str, perf: _Transfer, dumped_us: int) -> LogRecord:
    times = perf.event_trace_ts
    issued, ended = _times(times, times.p2p_start_ts if times else 0, dumped_us)
    took = _duration_us(perf.p2p_exec_time_us, perf.p2p_timing_source)
    return LogRecord(communicator, perf.p2p, perf.p2p_sn, 0, took, issued, ended, is_p2p=True)


def _times(trace: _Trace | None, started_us: int, dumped_us: int) -> tuple[int | None, int]:
    """Return when an operation was issued and when it ended. Times that make no sense are replaced by that of the dump."""
    ended = max((kernel.kernel_stop_ts for kernel in trace.kernel_events), default=0) if trace is not None else 0
    if not 0 <= dumped_us - ended < _LONGEST_US:
        ended = dumped_us
    return (started_us if 0 <= ended - started_us < _LONGEST_US else None), ended


def _duration_us(took: float, source: str) -> float | None:
    """Return the duration; ``None`` where it includes the time before the kernel started, or makes no sense."""
    return took if source in _ON_DEVICE and 0 < took < _LONGEST_US else None


def _is_prometheus(file: Path) -> bool:
    if file.suffix != ".prom":
        return False
    try:
        with open_regular(file) as opened:
            return b"nccl_" in opened.read(4096)
    except OSError:
        return False


@contextmanager
def _open(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a log, compressed or not; yield the file and its size, which is 0 for a compressed one."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if packed:
            with gzip.open(file, "rb") as unpacked:
                yield unpacked, 0  # type: ignore[misc]  # a GzipFile reads as any binary file
        else:
            yield file, size
