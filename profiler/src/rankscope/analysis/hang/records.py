"""One rank's Flight Recorder dump as records, whatever versions and backends wrote it.

Fields are those of torch's `FlightRecorder`; what is missing or makes no sense is ``None``. Times are unix nanoseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice, pairwise
from math import prod
from typing import Any, Final, Literal

State = Literal["scheduled", "started", "completed"]

MAX_SHOWN: Final = 64
"""Tensors and dimensions of an operation, and frames of its stack, that are looked at."""
LARGEST: Final = 2**62
MAX_RANK: Final = 2**31
MAX_RECORDS: Final = 500_000
"""Of one dump; torch keeps 2000 unless told otherwise."""
MAX_GROUPS: Final = 10_000
MAX_MEMBERS: Final = 2_000_000
"""Of all groups of a dump together."""
LAST_OF_GROUP: Final = 64
"""Operations of each group that are kept, though they have ended."""
_PEER: Final = re.compile(r"(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})")
_NUMBER: Final = re.compile(r"\d{1,10}")


@dataclass(frozen=True, slots=True)
class Record:
    """One operation that a rank has handed to its communication library."""

    record_id: int
    """Its place in all that the recorder has seen."""
    backend: str
    """``nccl``, ``gloo`` …"""
    group: str
    """Name of the process group; the same on all its ranks, but not in all the job's groups."""
    description: str | None
    pg_id: int | None
    """Number of the group on this rank; other ranks may have other numbers."""
    op: str
    """``all_reduce``, ``send`` …"""
    peers: tuple[int, int] | None
    """Of point-to-point: source and destination, as ranks of the group."""
    sequence: int
    """Number of the last collective in this group on this rank: of itself, if it is one."""
    p2p_sequence: int
    is_p2p: bool
    state: State
    retired: bool
    created_ns: int | None
    """When it was enqueued."""
    started_ns: int | None
    completed_ns: int | None
    timeout_ms: int | None
    raw: dict[str, Any] = field(repr=False, compare=False)
    """All fields, as they came."""

    def shapes(self, side: Literal["input", "output"]) -> list[list[int]]:
        """Shapes of the tensors, at most ``MAX_SHOWN`` of them."""
        tensors = self.raw.get(f"{side}_sizes")
        if not isinstance(tensors, list):
            return []
        found = [sizes for sizes in tensors[:MAX_SHOWN] if isinstance(sizes, list)]
        return [[size for size in sizes[:MAX_SHOWN] if whole(size) is not None] for sizes in found]

    def dtypes(self, side: Literal["input", "output"]) -> list[str]:
        """Types of the tensors."""
        names = self.raw.get(f"{side}_dtypes")
        return [text(name) for name in names[:MAX_SHOWN] if isinstance(name, str)] if isinstance(names, list) else []

    def elements(self, side: Literal["input", "output"]) -> int:
        """Elements of all tensors."""
        return sum(prod(shape) for shape in self.shapes(side))

    def frames(self) -> list[str]:
        """The stack that enqueued it, innermost first: ``train.py:40 in step``."""
        frames = self.raw.get("frames")
        if not isinstance(frames, list):
            return []
        return [
            f"{text(frame.get('filename'))}:{whole(frame.get('line')) or '?'} in {text(frame.get('name'))}"
            for frame in frames[:MAX_SHOWN]
            if isinstance(frame, dict)
        ]


@dataclass(frozen=True, slots=True)
class Config:
    """What a dump says of a process group."""

    description: str | None
    ranks: tuple[int, ...] | None
    """In the group's own order; ``None``: not said, as with gloo."""


@dataclass(frozen=True, slots=True)
class Dump:
    """What one recorder of one rank held."""

    records: list[Record]
    """In the order they were enqueued: all that have not ended, and the last of each group."""
    configs: dict[str, Config]
    """By name of the group."""
    progress: dict[str, int]
    """By name of the group, of groups whose name is known: how many its rank has enqueued, collectives and point-to-point in one
    number; -1: none."""
    all_progress: bool
    """Whether that is all groups that were ever used."""
    backend: str | None
    """Of the groups of which there are no records; ``None``: nothing tells."""
    damaged: int
    """Records that could not be used."""
    gapless: bool
    """Whether it had a record of all that was enqueued since its first one, ended or not."""
    from_the_beginning: bool
    """Whether nothing that was ever recorded was missing."""
    newest_ns: int | None
    """The last moment that it speaks of."""


def parse(document: object, *, backend: str | None = None) -> Dump | None:
    """A dump out of plain data; ``None`` when it is none. ``backend``: of its file's name, where that tells."""
    if not isinstance(document, dict) or "version" not in document or not {"entries", "pg_config"} & document.keys():
        return None
    entries = document.get("entries", [])
    if not isinstance(entries, list) or len(entries) > MAX_RECORDS:
        return None
    records = [record for entry in entries if (record := _record(entry)) is not None]
    records.sort(key=lambda record: record.record_id)
    used = next((record.backend for record in reversed(records)), None)
    configs = _configs(document.get("pg_config"))
    progress, unnamed = _progress(document.get("pg_status"), records, configs)
    gapless = all(after.record_id == before.record_id + 1 for before, after in pairwise(records))
    times = (time for record in records for time in (record.created_ns, record.started_ns, record.completed_ns))
    return Dump(
        records=_kept(records),
        configs=configs,
        progress=progress,
        all_progress=bool(progress) and not unnamed,
        backend=used or backend or ("nccl" if document.get("nccl_version") or document.get("comm_lib_version") else None),
        damaged=len(entries) - len(records),
        gapless=gapless,
        from_the_beginning=gapless and records[0].record_id == 0 if records else not entries and not document.get("pg_status"),
        newest_ns=max((time for time in times if time is not None), default=None),
    )


def _kept(records: list[Record]) -> list[Record]:
    """Thousands of ranks fit in memory only without what is over and done."""
    left: dict[tuple[str, str], int] = {}
    kept = []
    for record in reversed(records):
        group = (record.backend, record.group)
        left[group] = left.get(group, LAST_OF_GROUP) - 1
        if left[group] >= 0 or not (record.retired or record.state == "completed"):
            kept.append(record)
    return kept[::-1]


def _record(entry: object) -> Record | None:
    if not isinstance(entry, dict):
        return None
    group, name = entry.get("process_group"), entry.get("profiling_name")
    record_id, sequence = whole(entry.get("record_id")), whole(entry.get("collective_seq_id"))
    if not isinstance(group, tuple | list) or len(group) != 2:
        return None
    if not isinstance(name, str) or record_id is None or sequence is None:
        return None
    backend, _, op = name.rpartition(":")
    peers = _PEER.match(op)
    started, completed = (whole(entry.get(f"time_discovered_{what}_ns")) or None for what in ("started", "completed"))
    return Record(
        record_id=record_id,
        backend=text(backend) or "unknown",
        group=text(group[0]),
        description=_said(group[1]),
        pg_id=whole(entry.get("pg_id")),
        op=peers[1] if peers else text(op),
        peers=_peers(peers),
        sequence=sequence,
        p2p_sequence=whole(entry.get("p2p_seq_id")) or 0,
        is_p2p=entry.get("is_p2p") is True,
        state=_state(entry.get("state"), started, completed),
        retired=entry.get("retired") is True,
        created_ns=whole(entry.get("time_created_ns")) or None,
        started_ns=started,
        completed_ns=completed,
        timeout_ms=whole(entry.get("timeout_ms")) or None,
        raw=entry,
    )


def _peers(found: re.Match[str] | None) -> tuple[int, int] | None:
    if found is None:
        return None
    own, other = int(found[2]), int(found[3])
    return (own, other) if found[1] == "send" else (other, own)


def _state(said: object, started: int | None, completed: int | None) -> State:
    if completed is not None or said == "completed":
        return "completed"
    return "started" if started is not None or said == "started" else "scheduled"


def _configs(document: object) -> dict[str, Config]:
    if not isinstance(document, dict):
        return {}
    found: dict[str, Config] = {}
    # Many groups may have the same list, and a stranger's lists may be long: each is read once.
    known: dict[int, tuple[int, ...] | None] = {}
    members = 0
    for key, about in islice(document.items(), MAX_GROUPS):
        if not isinstance(about, dict) or not key:
            continue
        said = about.get("ranks")
        ranks = known[id(said)] = known[id(said)] if id(said) in known else _ranks(said)
        members += len(ranks or ())
        if members > MAX_MEMBERS:
            break
        found[text(key)] = Config(_said(about.get("desc")), ranks)
    return found


def _ranks(said: object) -> tuple[int, ...] | None:
    """Torch writes the list as text."""
    if not isinstance(said, str | list) or len(said) > 10 * MAX_MEMBERS:
        return None
    numbers: Iterable[object] = map(int, _NUMBER.findall(said)) if isinstance(said, str) else said
    ranks = [rank for number in numbers if (rank := whole(number)) is not None and rank < MAX_RANK]
    return tuple(dict.fromkeys(ranks)) or None


def _progress(document: object, records: list[Record], configs: dict[str, Config]) -> tuple[dict[str, int], int]:
    """By name, and how many are without: torch numbers the groups here, and names them everywhere else."""
    if not isinstance(document, dict):
        return {}, 0
    said = {
        number: enqueued
        for key, about in document.items()
        if (number := _integer(key)) is not None
        and isinstance(about, dict)
        and (enqueued := _integer(about.get("last_enqueued_collective"))) is not None
    }
    names = {record.pg_id: record.group for record in records if record.pg_id is not None}
    # Both are given in the order in which the groups were made; that they match is seen by those that have records.
    numbers = sorted(said)
    if len(numbers) == len(configs) and all(name.isdecimal() for name in configs):
        paired = dict(zip(numbers, sorted(configs, key=int), strict=True))
        if all(paired.get(number, name) == name for number, name in names.items()):
            names = paired
    named = {names[number]: enqueued for number, enqueued in said.items() if number in names}
    return named, len(document) - len(named)


def _integer(value: object) -> int | None:
    """Of a number, or of the text of one, as in the JSON form; -1 is torch's "never"."""
    if isinstance(value, str) and re.fullmatch(r"-1|\d{1,18}", value):
        return int(value)
    return -1 if value == -1 else whole(value)


def whole(value: object) -> int | None:
    """A number that can be one of a record's."""
    return value if type(value) is int and 0 <= value < LARGEST else None


def text(value: object) -> str:
    """For people: what a stranger wrote may be long."""
    return value[:300] if isinstance(value, str) else ""


def _said(value: object) -> str | None:
    found = text(value)
    return found if found not in ("", "undefined") else None
