"""Log of the NCCL Inspector plugin in one process: decode its records within bounded memory.

Each process of a job writes ``HOST-pidPID.log``: JSON objects ``header``, ``metadata`` and ``coll_perf`` or ``p2p_perf`` one
after the other (NVIDIA/nccl, ``ext-profiler/inspector``; from 2.30 on ``plugins/profiler/inspector/inspector_json.cc``). Versions
before 2.30 write no sends and receives, no ``comm_name``, and at most one collective per communicator and dump. Times are
microseconds of the host's clock; durations are from the clock of the GPU.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import msgspec

from rankscope.analysis.durations.duration_calls import LONGEST_US, DurationCall
from rankscope.analysis.durations.log_files import BEGIN, ENABLE, open_log
from rankscope.base.errors import InputError
from rankscope.runs.durations import TRANSFER, DurationGroup

_HEAD_BYTES: Final = 1 << 20
"""Size of the beginning of a long log, which names the communicators that are used at the start only."""
MOST_RECORD_BYTES: Final = 1 << 20
_USUAL_RECORD_BYTES: Final = 2048
_ON_DEVICE: Final = ("kernel_gpu", "kernel_cpu")
"""Values of ``coll_timing_source`` for the duration of the kernel, by the clock of the GPU or as the host saw it."""

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Rank = Annotated[int, msgspec.Meta(ge=0, le=2**24)]


class _LogHeader(msgspec.Struct):
    id: _Text
    rank: _Rank
    n_ranks: _Rank
    comm_name: str | None = None


class _LogMetadata(msgspec.Struct):
    hostname: _Text
    pid: _Count
    dump_timestamp_us: _Count


class _Kernel(msgspec.Struct, gc=False):
    kernel_stop_ts: _Count = 0


class _KernelTrace(msgspec.Struct):
    coll_start_ts: _Count = 0
    p2p_start_ts: _Count = 0
    kernel_events: list[_Kernel] = []


class _CollectiveEntry(msgspec.Struct):
    coll: _Text
    coll_sn: _Count
    coll_msg_size_bytes: _Count
    coll_exec_time_us: float
    coll_timing_source: str = "kernel_gpu"
    event_trace_ts: _KernelTrace | None = None


class _Transfer(msgspec.Struct):
    p2p: _Text
    p2p_sn: _Count
    p2p_exec_time_us: float
    p2p_timing_source: str = "kernel_gpu"
    event_trace_ts: _KernelTrace | None = None


class _Stats(msgspec.Struct):
    coll_dropped_since_last_dump: _Count = 0
    p2p_dropped_since_last_dump: _Count = 0


class _Object(msgspec.Struct):
    header: _LogHeader
    metadata: _LogMetadata
    coll_perf: _CollectiveEntry | None = None
    p2p_perf: _Transfer | None = None
    dump_stats: _Stats | None = None


@dataclass(slots=True)
class ProcessLog:
    """Log of one process."""

    path: Path
    host: str = ""
    pid: int = -1
    rows: deque[DurationCall] = field(default_factory=deque)
    groups: dict[str, DurationGroup] = field(default_factory=dict)
    """Communicators: the place of the process, the number of ranks, and the name. It is empty where NCCL knows none."""
    first_us: int = 0
    last_us: int = 0
    damaged: int = 0
    dropped: int = 0
    """Number of operations that the plugin dropped, because they completed faster than it dumps."""
    crossed: int = 0
    """Number of records that have another rank than those before on their communicator."""
    is_clipped: bool = False
    """True if only the last records were read."""

    @property
    def has_names(self) -> bool:
        """True if the plugin writes names of communicators, and so sends and receives, too."""
        return any(group.label is not None for group in self.groups.values())

    def add(self, record: _Object) -> bool:
        """Add a record; return whether it makes sense."""
        header, about = record.header, record.metadata
        if self.pid < 0:
            self.host, self.pid, self.first_us = about.hostname, about.pid, about.dump_timestamp_us
        if (about.hostname, about.pid) != (self.host, self.pid) or header.rank >= header.n_ranks:
            return False
        label = "" if header.comm_name == "unknown" else header.comm_name and header.comm_name[:64]
        group = self.groups.get(header.id)
        if group is not None and (group.place, group.size) != (header.rank, header.n_ranks):
            self.crossed += 1
            return False
        if group is None or (label and not group.label):
            self.groups[header.id] = DurationGroup(header.id, label=label, place=header.rank, size=header.n_ranks)
        self.last_us = max(self.last_us, about.dump_timestamp_us)
        if record.coll_perf is not None:
            self.rows.append(_collective(header.id, record.coll_perf, about.dump_timestamp_us))
        elif record.p2p_perf is not None:
            self.rows.append(_transfer(header.id, record.p2p_perf, about.dump_timestamp_us))
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


def read_log(path: Path, *, most: int) -> ProcessLog | InputError:
    """Read the last ``most`` records of a log; an error is returned, because the other logs may do."""
    log = ProcessLog(path, rows=deque(maxlen=most))
    tail = most * _USUAL_RECORD_BYTES
    try:
        with open_log(path) as (file, size):
            if size > _HEAD_BYTES + tail:
                log.is_clipped = True
                _decode(log, _pieces(file, _HEAD_BYTES))
                log.rows.clear()
                file.seek(size - tail)
                next(pieces := _pieces(file, tail), None)
                _decode(log, pieces)
            else:
                _decode(log, _pieces(file, None))
    except (OSError, EOFError, zlib.error) as error:
        if not log.rows:
            return InputError(path, str(getattr(error, "strerror", None) or error).lower())
        log.damaged += 1
    if 4 * log.crossed > len(log.rows):
        return InputError(path, f"process {log.pid} has several ranks of one communicator: only one GPU per process is supported")
    if log.rows:
        log.is_clipped |= len(log.rows) == most
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
    remaining = length
    buffer = b""
    while data := file.read(_HEAD_BYTES if remaining is None else min(remaining, _HEAD_BYTES)):
        remaining = None if remaining is None else remaining - len(data)
        buffer += data
        begins = [match.start() for match in BEGIN.finditer(buffer)]
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


def _collective(communicator: str, perf: _CollectiveEntry, dumped_us: int) -> DurationCall:
    took_us, times = _duration_us(perf.coll_exec_time_us, perf.coll_timing_source), _times_ns(perf.event_trace_ts, dumped_us)
    return DurationCall(communicator, perf.coll, perf.coll_sn, perf.coll_msg_size_bytes, *times, took_us)


def _transfer(communicator: str, perf: _Transfer, dumped_us: int) -> DurationCall:
    took_us, times = _duration_us(perf.p2p_exec_time_us, perf.p2p_timing_source), _times_ns(perf.event_trace_ts, dumped_us)
    return DurationCall(communicator, perf.p2p, perf.p2p_sn, 0, *times, took_us, TRANSFER)


def _times_ns(trace: _KernelTrace | None, dumped_us: int) -> tuple[int, int]:
    """Return when an operation was issued and when it ended. A time that makes no sense is 0, an end that of the dump."""
    issued_us = 0 if trace is None else trace.coll_start_ts or trace.p2p_start_ts
    ended_us = 0 if trace is None else max((kernel.kernel_stop_ts for kernel in trace.kernel_events), default=0)
    if not 0 <= dumped_us - ended_us < LONGEST_US:
        ended_us = dumped_us
    return (1000 * issued_us if 0 <= ended_us - issued_us < LONGEST_US else 0), 1000 * ended_us


def _duration_us(took: float, source: str) -> float | None:
    """Return the duration; ``None`` where it includes the time before the kernel started, or makes no sense."""
    return took if source in _ON_DEVICE and 0 < took < LONGEST_US else None
