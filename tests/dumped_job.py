"""Flight Recorder dumps of simulated jobs: programs of collectives, run until no rank can continue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.flight_dump_files import SECOND, START_NS, document, entry

from rankscope.analysis.hang.diagnosis import diagnose
from rankscope.analysis.hang.files import LoadedDumps
from rankscope.analysis.hang.flight_records import parse
from rankscope.analysis.hang.hang_result import HangReport

PENDING: Mapping[str, Any] = {"state": "started", "retired": False, "time_discovered_completed_ns": None}
"""Fields of the entry of an operation that has not ended."""


@dataclass(frozen=True)
class Call:
    """Collective that a rank enqueues."""

    group: str
    op: str = "all_reduce"
    sizes: tuple[int, ...] = (8, 4)
    dtype: str = "Float"


@dataclass
class DumpedJob:
    """Ranks, each with its calls, on groups."""

    groups: Mapping[str, Sequence[int]]
    calls: dict[int, list[Call]]
    ahead: int = 1
    """Number of calls that a rank enqueues before it waits for the first of them to end."""
    stops: dict[int, int] = field(default_factory=dict)
    """Rank to the number of calls after which it stops."""
    backend: str = "nccl"
    descriptions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_events(cls, groups: Mapping[str, Sequence[int]], events: Sequence[str], **options: Any) -> DumpedJob:
        """Return a job in which all ranks make their calls in the same order, so the order causes no hang."""
        ranks = sorted({rank for members in groups.values() for rank in members})
        calls = {rank: [Call(group) for group in events if rank in groups[group]] for rank in ranks}
        return cls(groups, calls, **options)

    def run(self) -> dict[int, tuple[int, int]]:
        """Run until no rank can continue; return per rank the numbers of enqueued and of ended calls."""
        enqueued = dict.fromkeys(self.calls, 0)
        ended = dict.fromkeys(self.calls, 0)
        moved = True
        while moved:
            moved = False
            for rank, calls in self.calls.items():
                most = min(len(calls), self.stops.get(rank, len(calls)), ended[rank] + self.ahead)
                if enqueued[rank] < most:
                    enqueued[rank], moved = most, True
            for rank, calls in self.calls.items():
                while ended[rank] < enqueued[rank] and self._all_began(rank, ended, enqueued):
                    ended[rank] += 1
                    moved = True
                del calls
        return {rank: (enqueued[rank], ended[rank]) for rank in self.calls}

    def _all_began(self, rank: int, ended: dict[int, int], enqueued: dict[int, int]) -> bool:
        """Return whether all members have started the rank's next call on their devices, or passed it."""
        call = self.calls[rank][ended[rank]]
        number = self.number(rank, ended[rank])
        for member in self.groups[call.group]:
            begun = self.calls[member][: min(ended[member] + 1, enqueued[member])]
            if sum(begun_call.group == call.group for begun_call in begun) < number:
                return False
        return True

    def number(self, rank: int, place: int) -> int:
        """Return the sequence number of a call in its group."""
        group = self.calls[rank][place].group
        return sum(call.group == group for call in self.calls[rank][: place + 1])

    def dumps(self, *, ring: int = 2000, only_active: bool = False) -> dict[int, dict[str, Any]]:
        """Return the dump of each rank's recorder at the hang."""
        return {rank: self._dump(rank, *progress, ring, only_active=only_active) for rank, progress in self.run().items()}

    def _dump(self, rank: int, enqueued: int, ended: int, ring: int, *, only_active: bool) -> dict[str, Any]:
        groups = {name: members for name, members in self.groups.items() if rank in members}
        numbers = {name: place for place, name in enumerate(groups)}
        entries = [
            self._entry(rank, place, numbers, over=place < ended)
            for place in range(max(0, enqueued - ring), enqueued)
            if place >= ended or not only_active
        ]
        status = {}
        for name, number in numbers.items():
            made = [sum(call.group == name for call in self.calls[rank][:count]) for count in (enqueued, ended)]
            if made[0]:
                status[str(number)] = {
                    "last_enqueued_collective": made[0],
                    "last_started_collective": -1,
                    "last_completed_collective": made[1],
                }
        dump = document(groups, entries, descriptions=self.descriptions, status=status)
        without_groups = {"comm_lib_version": "", "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}}}
        return dump if self.backend == "nccl" else dump | without_groups

    def _entry(self, rank: int, place: int, numbers: Mapping[str, int], *, over: bool) -> dict[str, Any]:
        call = self.calls[rank][place]
        number = self.number(rank, place)
        has_ended = self.backend == "nccl" and over
        created = START_NS + place * SECOND // 100 + rank * 1000
        return entry(
            place,
            f"{self.backend}:{call.op}",
            group=(call.group, self.descriptions.get(call.group, "undefined")),
            sequence=number,
            created_ns=created,
            sizes=([call.sizes], [call.sizes]),
            dtype=call.dtype,
            ended=has_ended,
            pg_id=numbers[call.group],
            time_discovered_completed_ns=created + SECOND // 100 if has_ended else None,
            retired=over,
            frames=[{"name": "step", "filename": "train.py", "line": 40 + place}],
        )


def leave_pending(dumps: Mapping[int, dict[str, Any]], *, state: str = "scheduled") -> None:
    """Change the last operation of each dump to one that has not ended."""
    for dump in dumps.values():
        dump["entries"][-1].update(PENDING, state=state)


def report_of(
    documents: Mapping[int, dict[str, Any]], *, waited_s: Mapping[int, float] | None = None, world_size: int | None = None
) -> HangReport:
    """Return the report on one document per rank. ``waited_s``: seconds from the start of the job to the dump, by rank."""
    dumps = LoadedDumps("dumps", world_size=world_size)
    for rank, content in documents.items():
        dump = parse(content)
        assert dump is not None
        dumps.ranks[rank] = [dump]
    dumps.taken_ns = {rank: START_NS + int(seconds * 1e9) for rank, seconds in (waited_s or {}).items()}
    return diagnose(dumps)


def p2p(dump: dict[str, Any], op: str, group: str, number: int, **fields: Any) -> None:
    """Add point-to-point that has not ended: ``send 0->1`` or ``recv 0<-1``, in ranks of the group."""
    place = dump["entries"][-1]["record_id"] + 1 if dump["entries"] else 0
    dump["entries"].append(
        entry(
            place,
            f"nccl:{op}",
            group=(group, "undefined"),
            sequence=0,
            created_ns=START_NS + place * SECOND // 100,
            sizes=([[4]], [[4]]),
            ended=False,
            **{"pg_id": 50, "p2p_seq_id": number, "op_id": number, "is_p2p": True} | fields,
        )
    )


def batch(
    dump: dict[str, Any],
    operations: Sequence[tuple[str, Sequence[int], Sequence[int]]],
    *,
    closed: bool = True,
    done: bool = False,
) -> None:
    """Add a coalesced batch of collectives (name, input and output sizes); torch ends only the record that closes it."""
    last = dump["entries"][-1]
    number = last["collective_seq_id"] + 1
    for place, (op, *sizes) in enumerate([*operations, *([("coalesced", (), ())] if closed else [])], last["record_id"] + 1):
        is_over = done and op == "coalesced"
        created = START_NS + place * SECOND // 100
        fields: dict[str, Any] = {"record_id": place, "collective_seq_id": number, "profiling_name": f"nccl:{op}"}
        for side, shape in zip(("input", "output"), sizes, strict=True):
            fields |= {f"{side}_sizes": [list(shape)] if shape else [], f"{side}_dtypes": ["Float"] if shape else []}
        fields |= {"time_created_ns": created, "state": "completed" if is_over else "scheduled", "retired": is_over}
        dump["entries"].append(last | fields | {"time_discovered_completed_ns": created + 1 if is_over else None})
    for status in dump["pg_status"].values():
        status["last_enqueued_collective"] = number
        status["last_completed_collective"] = number if done else number - 1
