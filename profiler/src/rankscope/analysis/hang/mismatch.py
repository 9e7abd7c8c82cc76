"""Ranks that came to the same collective with different operations, sizes or data types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rankscope.analysis.hang.flight_records import COALESCED, Record
from rankscope.analysis.hang.groups import HangGroup
from rankscope.analysis.hang.hang_result import Mismatch, MismatchedPart
from rankscope.analysis.hang.meetings import Meeting
from rankscope.analysis.hang.progress import ProgressTable
from rankscope.analysis.operations import OperationKind, Side, operation, operation_name
from rankscope.analysis.result.text import counted

MOST_PARTS: Final = 64
"""Maximum number of mismatched parts of one collective that are listed."""

_SIDES: Final[tuple[Side, Side]] = ("input", "output")

Records = Mapping[int, Record]
Parts = Sequence[int] | int
"""Elements for or from each rank of the group, in its order; one number where they are the same for all."""


@dataclass(frozen=True, slots=True)
class RecordMismatch:
    """Difference between the records of one collective."""

    what: Literal["op", "size", "dtype"]
    values: dict[str, list[int]]
    """Ranks by value."""
    odd: list[int]
    """Ranks that differ from the majority; empty without one."""
    parts: list[MismatchedPart] | None = None
    totals: tuple[int, int] | None = None
    """Elements that all ranks together send and expect, where these numbers differ."""


def find_mismatches(meetings: Iterable[Meeting], progress: ProgressTable) -> dict[Meeting, tuple[Mismatch, list[int]]]:
    """Return, per meeting with a mismatch: the values on which its ranks disagree, and the ranks in the minority.

    The minority is empty unless more than half of the ranks agree.
    """
    mismatches: dict[Meeting, tuple[Mismatch, list[int]]] = {}
    for meeting in meetings:
        difference = _of_transfer(meeting) if meeting.transfer else _of_collective(meeting, progress)
        if difference is not None:
            sent, expected = difference.totals or (None, None)
            mismatch = Mismatch(
                group=meeting.group.name,
                group_description=meeting.group.description,
                sequence=meeting.sequence,
                what=difference.what,
                values=difference.values,
                parts=difference.parts or [],
                sent=sent,
                expected=expected,
            )
            mismatches[meeting] = mismatch, difference.odd
    return mismatches


def _of_collective(meeting: Meeting, progress: ProgressTable) -> RecordMismatch | None:
    records = dict(meeting.records)
    for rank in meeting.ended:
        rank_progress = progress.of(meeting.group, rank)
        if rank_progress is not None and meeting.sequence in rank_progress.collectives:
            records[rank] = rank_progress.collectives[meeting.sequence]
    if any(record.op != COALESCED for record in records.values()):
        return _of_records(meeting.group, records)
    recorded = {rank: rank_progress for rank in records if (rank_progress := progress.of(meeting.group, rank)) is not None}
    return _of_batch(
        meeting.group, {rank: rank_progress.batches.get(meeting.sequence, []) for rank, rank_progress in recorded.items()}
    )


def _of_records(group: HangGroup, records: Records) -> RecordMismatch | None:
    return next((difference for check in _CHECKS if (difference := check(group, records)) is not None), None)


def _of_batch(group: HangGroup, batches: Mapping[int, Sequence[Record]]) -> RecordMismatch | None:
    """Compare the members of a coalesced batch one by one: they run in their order."""
    # The recorder may have dropped the members, but not the record that closes them.
    batches = {rank: members for rank, members in batches.items() if members}
    lengths = {rank: len(members) for rank, members in batches.items()}
    if len(set(lengths.values())) > 1:
        return _by_value("op", {rank: f"{counted(length, 'operation')} in one batch" for rank, length in lengths.items()})
    for place in range(max(lengths.values(), default=0)):
        difference = _of_records(group, {rank: members[place] for rank, members in batches.items()})
        if difference is not None:
            return difference
    return None


def _of_transfer(meeting: Meeting) -> RecordMismatch | None:
    """Compare the two sides of a transfer; there is no majority of two."""
    records = {rank: record for rank, record in meeting.records.items() if record.elements("input")}
    if not meeting.paired or len(records) < 2:
        return None
    sizes = {rank: f"{_elements(record.elements('input'))} in its {record.op}" for rank, record in records.items()}
    if len({record.elements("input") for record in records.values()}) > 1:
        return _by_value("size", sizes)
    return _by_value("dtype", {rank: ", ".join(names) for rank, record in records.items() if (names := record.dtypes("input"))})


def _by_operation(_group: HangGroup, records: Records) -> RecordMismatch | None:
    spellings: dict[str, str] = {}
    return _by_value("op", {rank: spellings.setdefault(operation_name(record.op), record.op) for rank, record in records.items()})


def _by_size(group: HangGroup, records: Records) -> RecordMismatch | None:
    """Compare sizes as the operation requires, which is the same on all ranks."""
    row = operation(_name(records))
    uneven = any(len(set(record.tensors(side))) > 1 for side in row.parts for record in records.values())
    if row.equal and not uneven:
        return _by_elements(records, row)
    if not row.parts or not group.ranks_known:
        return None
    return _by_parts(group, records, row) or _by_totals(group, records, row)


def _by_type(_group: HangGroup, records: Records) -> RecordMismatch | None:
    row = operation(_name(records))
    if not row.has_one_type:
        return None
    # Of a scatter only the root has inputs, of a gather only the root has outputs. The type of an empty tensor does not matter.
    side: Side = "output" if row.parts == ("input",) else "input"
    types = {rank: ", ".join(sorted(set(record.dtypes(side)))) for rank, record in records.items() if record.elements(side)}
    return _by_value("dtype", {rank: names for rank, names in types.items() if names})


_CHECKS: Final[tuple[Callable[[HangGroup, Records], RecordMismatch | None], ...]] = (_by_operation, _by_size, _by_type)
"""Checks in this order, because a different operation also has different sizes."""


def _name(records: Records) -> str:
    return operation_name(next(iter(records.values())).op)


def _by_value(what: Literal["op", "size", "dtype"], by_rank: Mapping[int, str]) -> RecordMismatch | None:
    values: dict[str, list[int]] = {}
    for rank in sorted(by_rank):
        values.setdefault(by_rank[rank], []).append(rank)
    if len(values) < 2:
        return None
    most = max(values.values(), key=len)
    odd_ranks = [] if 2 * len(most) <= len(by_rank) else sorted(by_rank.keys() - set(most))
    return RecordMismatch(what, values, odd_ranks)


def _by_elements(records: Records, row: OperationKind) -> RecordMismatch | None:
    """Find ranks whose tensors have another number of elements. Each tensor of a coalesced collective is a message of its own."""
    coalesced = _name(records).endswith("_coalesced")
    for side in row.equal:
        tensors = {rank: counts for rank, record in records.items() if (counts := record.tensors(side))}
        if not coalesced:
            tensors = {rank: (sum(counts),) for rank, counts in tensors.items()}
        if len(set(tensors.values())) > 1:
            return _by_value("size", _element_texts(tensors, "" if side == "input" else " of output"))
    return None


def _element_texts(tensors: Mapping[int, tuple[int, ...]], of: str) -> dict[int, str]:
    """Describe what each rank came with: the number of tensors if it differs, else the first tensor that differs."""
    lengths = {len(counts) for counts in tensors.values()}
    if len(lengths) > 1:
        return {rank: f"{_elements(sum(counts))}{of} in {counted(len(counts), 'tensor')}" for rank, counts in tensors.items()}
    at = next(at for at, row in enumerate(zip(*tensors.values(), strict=True)) if len(set(row)) > 1)
    where = "" if lengths == {1} else f" in tensor {at + 1} of {max(lengths)}"
    return {rank: f"{_elements(counts[at])}{of}{where}" for rank, counts in tensors.items()}


def _by_parts(group: HangGroup, records: Records, row: OperationKind) -> RecordMismatch | None:
    """Find parts whose sender and receiver expect different sizes; a rank is odd if all these parts are its own."""
    place = {rank: at for at, rank in enumerate(group.ranks)}
    sent, expected = (_parts(records, row, side, len(place)) for side in _SIDES)
    differing = [
        MismatchedPart(sender=sender, receiver=receiver, sent=sent_size, expected=expected_size)
        for receiver, incoming in expected.items()
        for sender, outgoing in sent.items()
        if (sent_size := _part(outgoing, place[receiver])) != (expected_size := _part(incoming, place[sender]))
    ]
    if not differing:
        return None
    values: dict[str, list[int]] = {}
    for part in differing[:MOST_PARTS]:
        values.setdefault(f"sends {_elements(part.sent)} to rank {part.receiver}", []).append(part.sender)
        values.setdefault(f"expects {_elements(part.expected)} from rank {part.sender}", []).append(part.receiver)
    common = set.intersection(*({part.sender, part.receiver} for part in differing))
    return RecordMismatch("size", values, sorted(common) if len(common) == 1 else [], parts=differing[:MOST_PARTS])


def _parts(records: Records, row: OperationKind, side: Side, ranks: int) -> dict[int, Parts]:
    """Return the parts for or from each rank of the group, of the ranks that have them in their dumps."""
    by_rank: dict[int, Parts] = {}
    for rank, record in sorted(records.items()):
        parts: Parts | None = record.parts(side, ranks) if side in row.parts else record.elements(side)
        if parts is not None and record.tensors(side):
            by_rank[rank] = parts
    return by_rank


def _part(parts: Parts, at: int) -> int:
    return parts if isinstance(parts, int) else parts[at]


def _by_totals(group: HangGroup, records: Records, row: OperationKind) -> RecordMismatch | None:
    """Compare what all ranks send with what all expect, where the dumps do not have the parts."""
    tensors = {rank: (records[rank].tensors("input"), records[rank].tensors("output")) for rank in sorted(records)}
    if row.parts != _SIDES or tensors.keys() != group.members or not all(all(sides) for sides in tensors.values()):
        return None
    totals = {rank: (sum(inputs), sum(outputs)) for rank, (inputs, outputs) in tensors.items()}
    sent, expected = (sum(column) for column in zip(*totals.values(), strict=True))
    if sent == expected:
        return None
    values: dict[str, list[int]] = {}
    for rank, (own, other) in totals.items():
        values.setdefault(f"{_elements(own)} in, {other} out", []).append(rank)
    return RecordMismatch("size", values, [], totals=(sent, expected))


def _elements(count: int) -> str:
    return f"{count} element{'' if count == 1 else 's'}"
