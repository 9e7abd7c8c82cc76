"""One rank's Flight Recorder dump as records, for all versions and backends.

Fields are those of torch's `FlightRecorder`. A field that is missing or makes no sense is ``None``. Times are unix nanoseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from math import prod
from typing import Any, Final, Literal

from rankscope.analysis.collectives.world import MOST_RANKS

State = Literal["scheduled", "started", "completed"]

NEWEST: Final = (2, 10)
"""Newest version of the format that is known, major and minor, that of torch 2.13."""

MAX_SHOWN: Final = 64
"""Maximum number of tensors and dimensions of an operation, and of frames of its stack, that are read."""
LARGEST: Final = 2**62
MAX_RECORDS: Final = 500_000
"""Maximum number of records in one dump; torch keeps 2000 by default."""
MAX_GROUPS: Final = 10_000
MAX_MEMBERS: Final = 2_000_000
"""Maximum number of members of all groups of a dump together."""
LAST_OF_GROUP: Final = 64
"""Number of last operations per group that are kept even if they have ended."""
COALESCED: Final = "coalesced"
"""Operation of the record that closes a coalesced batch."""
_PEER: Final = re.compile(r"(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})")
_NAME: Final = "profiling_name"
_VERSION: Final = re.compile(r"(\d{1,9})(?:\.(\d{1,9}))?(?:\.\d{1,9})*")
_NUMBER: Final = re.compile(r"\d{1,10}")


@dataclass(frozen=True, slots=True)
class Record:
    """One operation that a rank has passed to its communication library."""

    record_id: int
    """Position among all operations that the recorder has seen."""
    backend: str
    """``nccl``, ``gloo`` …"""
    group: str
    """Name of the process group: the same on all its ranks, but not necessarily unique in the job."""
    description: str | None
    pg_id: int | None
    """Number of the group on this rank; other ranks may number it differently."""
    op: str
    """``all_reduce``, ``send`` …"""
    peers: tuple[int, int] | None
    """Source and destination of a point-to-point operation, as ranks of the group."""
    sequence: int
    """Number of the last collective in this group on this rank; for a collective, its own number."""
    p2p_sequence: int
    is_p2p: bool
    state: State
    retired: bool
    created_ns: int | None
    """Time at which it was enqueued."""
    started_ns: int | None
    completed_ns: int | None
    timeout_ms: int | None
    raw: dict[str, Any] = field(repr=False, compare=False)
    """All fields as they are in the dump."""
    batch: int | None = None
    """``record_id`` of the record that closes its coalesced batch; ``None`` outside a closed batch."""

    @property
    def number(self) -> int:
        """Number among the collectives, or among the point-to-point operations, of the group; members of a batch share it."""
        return self.p2p_sequence if self.is_p2p else self.sequence

    def shapes(self, side: Literal["input", "output"]) -> list[list[int]]:
        """Return the shapes of the tensors, at most ``MAX_SHOWN`` of them."""
        tensors = self.raw.get(f"{side}_sizes")
        if not isinstance(tensors, list):
            return []
        lists = [sizes for sizes in tensors[:MAX_SHOWN] if isinstance(sizes, list)]
        return [[size for size in sizes[:MAX_SHOWN] if whole_number(size) is not None] for sizes in lists]

    def dtypes(self, side: Literal["input", "output"]) -> list[str]:
        """Return the data types of the tensors, at most ``MAX_SHOWN`` of them."""
        names = self.raw.get(f"{side}_dtypes")
        return [text(name) for name in names[:MAX_SHOWN] if isinstance(name, str)] if isinstance(names, list) else []

    def tensors(self, side: Literal["input", "output"]) -> tuple[int, ...]:
        """Return the number of elements of each tensor; empty where the dump does not have them, or they make no sense."""
        shapes = self.raw.get(f"{side}_sizes")
        if not isinstance(shapes, list) or not all(_is_shape(shape) for shape in shapes):
            return ()
        counts = tuple(prod(shape) for shape in shapes)
        return counts if sum(counts) < LARGEST else ()

    def elements(self, side: Literal["input", "output"]) -> int:
        """Return the number of elements of all tensors together."""
        return sum(self.tensors(side))

    def parts(self, side: Literal["input", "output"], ranks: int) -> Sequence[int] | None:
        """Return the elements of the part for or from each of ``ranks`` ranks; ``None`` where the dump has only their sum."""
        tensors = self.tensors(side)
        if len(tensors) == ranks:
            return tensors
        splits = self.raw.get(f"{side}_split_sizes")
        if not tensors or not isinstance(splits, list) or len(splits) != ranks or not all(map(_is_size, splits)):
            return None
        return splits if sum(splits) == sum(tensors) else None

    def frames(self) -> list[str]:
        """Return the stack that enqueued it, innermost frame first: ``train.py:40 in step``."""
        frames = self.raw.get("frames")
        if not isinstance(frames, list):
            return []
        return [
            f"{text(frame.get('filename'))}:{whole_number(frame.get('line')) or '?'} in {text(frame.get('name'))}"
            for frame in frames[:MAX_SHOWN]
            if isinstance(frame, dict)
        ]


@dataclass(frozen=True, slots=True)
class Config:
    """Configuration of a process group, as given in a dump."""

    description: str | None
    ranks: tuple[int, ...] | None
    """Ranks in the group's own order; ``None`` if the dump does not list them, as with gloo."""


@dataclass(frozen=True, slots=True)
class RecorderDump:
    """Content of one recorder of one rank."""

    records: list[Record]
    """All records that have not ended, and at least the last ones of each group, in the order they were enqueued."""
    configs: dict[str, Config]
    """Configurations by name of the group."""
    progress: dict[str, int]
    """Per group whose name is known: number of operations that the rank has enqueued, collectives and point-to-point together;
    -1: none."""
    all_progress: bool
    """True if ``progress`` holds all groups that were ever used."""
    backend: str | None
    """Backend of the groups without records; ``None`` if unknown."""
    damaged: int
    """Number of records that could not be used."""
    gapless: bool
    """True if the dump had a record of every operation enqueued since its first one, ended or not."""
    from_the_beginning: bool
    """True if no operation that was ever recorded is missing."""
    newest_ns: int | None
    """Latest time in the dump."""
    completed_ns: int | None
    """Latest time at which an operation ended; if the backend does not record that, at which one was enqueued that has ended."""
    newer_version: str | None = None
    """Version of the format, if it is newer than ``NEWEST``: fields may be missing or have another meaning."""


def parse(document: object, *, backend: str | None = None, whole_history: bool = False) -> RecorderDump | None:
    """Parse a dump from plain data; ``None`` if it is not a dump. ``backend``: the one in the file's name, if any.

    ``whole_history``: also keep older records that have ended.
    """
    if not isinstance(document, dict) or "version" not in document or not {"entries", "pg_config"} & document.keys():
        return None
    entries = document.get("entries", [])
    if not isinstance(entries, list) or len(entries) > MAX_RECORDS:
        return None
    records = [record for entry in entries if (record := _record(entry)) is not None]
    records.sort(key=lambda record: record.record_id)
    used = next((record.backend for record in reversed(records)), None)
    configs = _configs(document.get("pg_config"))
    progress, unnamed = _progress(document.get("pg_status"), "last_enqueued_collective", records, configs)
    damaged = len(entries) - len(records)
    gapless = not damaged and all(after.record_id == before.record_id + 1 for before, after in pairwise(records))
    records = _with_batches(records)
    if not gapless:
        records = _with_ended_members(
            records, _progress(document.get("pg_status"), "last_completed_collective", records, configs)[0]
        )
    times = (time for record in records for time in (record.created_ns, record.started_ns, record.completed_ns))
    return RecorderDump(
        records=records if whole_history else _drop_ended(records),
        configs=configs,
        progress=progress,
        all_progress=bool(progress) and not unnamed,
        backend=used or backend or ("nccl" if document.get("nccl_version") or document.get("comm_lib_version") else None),
        damaged=damaged,
        gapless=gapless,
        # A dump without records is also that of a recorder that is off.
        from_the_beginning=gapless and bool(records) and records[0].record_id == 0,
        newest_ns=max((time for time in times if time is not None), default=None),
        completed_ns=max((time for record in records if (time := _ended_ns(record)) is not None), default=None),
        newer_version=newer_version(document),
    )


def newer_version(document: object) -> str | None:
    """Return the version of a dump's format if it is newer than ``NEWEST``, else ``None``."""
    version = document.get("version") if isinstance(document, dict) else None
    match = _VERSION.fullmatch(version) if isinstance(version, str) else None
    return version if match is not None and (int(match[1]), int(match[2] or 0)) > NEWEST else None


def _ended_ns(record: Record) -> int | None:
    """Return the time at which an operation ended, or the last time before that which is recorded."""
    # NCCL also retires operations that timed out.
    is_over = record.state == "completed" or (record.retired and record.backend != "nccl")
    return (record.completed_ns or record.created_ns) if is_over else None


def unreadable_fields(document: object) -> list[str]:
    """Return the fields for which the first record of a dump cannot be read."""
    entries = document.get("entries") if isinstance(document, dict) else None
    entry = entries[0] if isinstance(entries, list) and entries else None
    if not isinstance(entry, dict):
        return ["entries"]
    numbers = [name for name in ("record_id", "collective_seq_id") if whole_number(entry.get(name)) is None]
    pair = isinstance(group := entry.get("process_group"), tuple | list) and len(group) == 2
    return [*numbers, *([] if pair else ["process_group"]), *([] if isinstance(entry.get(_NAME), str) else [_NAME])]


def _with_batches(records: list[Record]) -> list[Record]:
    """Give the members of each coalesced batch the state of the record that closes it: torch never ends them themselves."""
    closing: dict[tuple[str, str, bool, int], Record] = {}
    batched = []
    for record in reversed(records):
        key = (record.backend, record.group, record.is_p2p, record.number)
        if record.op == COALESCED:
            closing[key] = record
        elif key in closing:
            end = closing[key]
            record = replace(record, state=end.state, retired=end.retired, batch=end.record_id)  # noqa: PLW2901
        batched.append(record)
    return batched[::-1]


def _with_ended_members(records: list[Record], completed: dict[str, int]) -> list[Record]:
    """End the members of batches that have ended, where torch dumps only what has not, and so not the records that close them.

    ``completed``: number of the last operation that has ended, by group; it may be a transfer in a group that has some.
    """
    mixed = {record.group for record in records if record.is_p2p}
    return [
        replace(record, state="completed")
        if record.backend == "nccl" and record.group not in mixed and record.sequence <= completed.get(record.group, -1)
        else record
        for record in records
    ]


def _drop_ended(records: list[Record]) -> list[Record]:
    """Drop older records that have ended, so that the dumps of thousands of ranks fit in memory."""
    room_of_group: dict[tuple[str, str], int] = {}
    recent_records = []
    for record in reversed(records):
        group = (record.backend, record.group)
        room_of_group[group] = room_of_group.get(group, LAST_OF_GROUP) - 1
        if room_of_group[group] >= 0 or not (record.retired or record.state == "completed"):
            recent_records.append(record)
    return recent_records[::-1]


def _record(entry: object) -> Record | None:
    if not isinstance(entry, dict):
        return None
    group, name = entry.get("process_group"), entry.get(_NAME)
    record_id, sequence = whole_number(entry.get("record_id")), whole_number(entry.get("collective_seq_id"))
    if not isinstance(group, tuple | list) or len(group) != 2:
        return None
    if not isinstance(name, str) or record_id is None or sequence is None:
        return None
    backend, _, op = name.rpartition(":")
    peers = _PEER.match(op)
    started, completed = (whole_number(entry.get(f"time_discovered_{what}_ns")) or None for what in ("started", "completed"))
    return Record(
        record_id=record_id,
        backend=text(backend) or "unknown",
        group=text(group[0]),
        description=_label(group[1]),
        pg_id=whole_number(entry.get("pg_id")),
        op=peers[1] if peers else text(op),
        peers=_peers(peers),
        sequence=sequence,
        p2p_sequence=whole_number(entry.get("p2p_seq_id")) or 0,
        is_p2p=entry.get("is_p2p") is True,
        state=_state(entry.get("state"), started, completed),
        retired=entry.get("retired") is True,
        created_ns=whole_number(entry.get("time_created_ns")) or None,
        started_ns=started,
        completed_ns=completed,
        timeout_ms=whole_number(entry.get("timeout_ms")) or None,
        raw=entry,
    )


def _peers(match: re.Match[str] | None) -> tuple[int, int] | None:
    if match is None:
        return None
    own, other = int(match[2]), int(match[3])
    return (own, other) if match[1] == "send" else (other, own)


def _state(state: object, started: int | None, completed: int | None) -> State:
    if completed is not None or state == "completed":
        return "completed"
    return "started" if started is not None or state == "started" else "scheduled"


def _configs(document: object) -> dict[str, Config]:
    if not isinstance(document, dict):
        return {}
    configs: dict[str, Config] = {}
    # Many groups may share one list, and lists of an untrusted dump may be long: each is parsed once.
    parsed: dict[int, tuple[int, ...] | None] = {}
    members = 0
    for key, about in islice(document.items(), MAX_GROUPS):
        if not isinstance(about, dict) or not key:
            continue
        listed = about.get("ranks")
        ranks = parsed[id(listed)] = parsed[id(listed)] if id(listed) in parsed else _ranks(listed)
        members += len(ranks or ())
        if members > MAX_MEMBERS:
            break
        configs[text(key)] = Config(_label(about.get("desc")), ranks)
    return configs


def _ranks(listed: object) -> tuple[int, ...] | None:
    """Parse the ranks of a group; torch writes the list as text."""
    if not isinstance(listed, str | list) or len(listed) > 10 * MAX_MEMBERS:
        return None
    numbers: Iterable[object] = map(int, _NUMBER.findall(listed)) if isinstance(listed, str) else listed
    ranks = [rank for number in numbers if (rank := whole_number(number)) is not None and rank < MOST_RANKS]
    return tuple(dict.fromkeys(ranks)) or None


def _progress(document: object, key: str, records: list[Record], configs: dict[str, Config]) -> tuple[dict[str, int], int]:
    """Return a number of each group's status by the group's name, and the number of groups whose name is unknown.

    Torch identifies the groups by number here, and by name everywhere else.
    """
    if not isinstance(document, dict):
        return {}, 0
    numbered = {
        number: last
        for name, about in document.items()
        if (number := _integer(name)) is not None and isinstance(about, dict) and (last := _integer(about.get(key))) is not None
    }
    names = {record.pg_id: record.group for record in records if record.pg_id is not None}
    # Numbers and names are both in the order in which the groups were created; groups with records confirm the match.
    numbers = sorted(numbered)
    if len(numbers) == len(configs) and all(name.isdecimal() for name in configs):
        paired = dict(zip(numbers, sorted(configs, key=int), strict=True))
        if all(paired.get(number, name) == name for number, name in names.items()):
            names = paired
    named = {names[number]: last for number, last in numbered.items() if number in names}
    return named, len(document) - len(named)


def _integer(value: object) -> int | None:
    """Return an integer from a number or, as in the JSON form, from its text; -1 is torch's "never"."""
    if isinstance(value, str) and re.fullmatch(r"-1|\d{1,18}", value):
        return int(value)
    return -1 if value == -1 else whole_number(value)


def whole_number(value: object) -> int | None:
    """Return ``value`` if it is an integer from 0 to below ``LARGEST``, else ``None``."""
    return value if type(value) is int and 0 <= value < LARGEST else None


def _is_shape(sizes: object) -> bool:
    return isinstance(sizes, list) and len(sizes) <= MAX_SHOWN and all(map(_is_size, sizes))


def _is_size(value: object) -> bool:
    return whole_number(value) is not None


def text(value: object) -> str:
    """Return at most 300 characters of a string: text of an untrusted dump may be long."""
    return value[:300] if isinstance(value, str) else ""


def _label(value: object) -> str | None:
    label = text(value)
    return label if label not in ("", "undefined") else None
