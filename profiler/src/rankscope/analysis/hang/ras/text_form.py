"""Text of NCCL RAS (2.24 and later), for the versions that have no JSON: what differs between ranks, in sentences.

The lines are those of NCCL's docs ("RAS", "Sample Output") and of ``src/ras/client_support.cc`` from 2.24 to 2.30. Ranks are
listed for the smaller sets only; the ranks of the largest are the others.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from rankscope.analysis.hang.ras.snapshot import LARGEST, AnswerError, Communicator, Member, RasDevice, Snapshot, State

_VERSION: Final = re.compile(r"NCCL version (\S{1,64})")
_ROW: Final = re.compile(r" *(\d{1,6}) +(\d{1,9}) +(\d{1,9}) +([\d-]{1,20}) +(\d{1,9}) +(\d{1,9}) +(\w{1,20}) +([\w,]{1,60})")
"""Group of communicators: number, communicators, nodes, ranks per node, ranks per communicator, ranks, status, errors."""
_NUMBERS: Final = re.compile(r" +\d{1,9}(?: +\d{1,9})*")
_HEAD: Final = re.compile(r"#(\d{1,6})-\d{1,9} \(([0-9a-f]{1,16})\) (INCOMPLETE|ERROR|MISMATCH)")
_TIMEOUTS: Final = re.compile(r"  Encountered (\d{1,9}) communication timeout")
_LIST: Final = re.compile(r"  The (missing|unknown) ranks?: ([\d,]{1,1024})")
_DIFFERENT: Final = re.compile(r"  Communicator ranks have different (?:(\w{1,40}) operation counts|status)")
_SET: Final = re.compile(
    r"  (\d{1,9}) ranks (?:have launched up to operation (\d{1,19})|have (not launched) any operations"
    r"|have status (\w{1,20})|reported (.{1,60}))"
)
_RANK: Final = re.compile(
    r"  Rank (\d{1,6})(?: has launched up to operation (\d{1,19})| has (not launched) any operations"
    r"| has status (\w{1,20})| reported (.{1,60}?))?(?: -- (.{1,200}))?"
)
_DEVICE: Final = re.compile(r"GPU (\d{1,3})(?: \(NVML (\d{1,3})\))? managed by process (\d{1,10}) on node (\S{1,64})")
_PROCESS: Final = re.compile(r"  Process (\d{1,10}) on node (\S{1,64}) managing GPU")
_STATES: Final[dict[str, State | None]] = {
    "RUNNING": "running",
    "INIT": "initializing",
    "FINALIZE": "finalizing",
    "ABORT": "aborting",
}
MAX_RANKS: Final = 4 * LARGEST
"""Maximum size of all listed communicators together."""
MAX_KINDS: Final = 8
"""Maximum number of kinds of collectives in a communicator; NCCL has five. Others are ignored."""
_NO_MEMBER: Final = ("NOCOMM", "UNKNOWN")
"""Status of a rank that is no member: up to 2.25 under another name."""


@dataclass(slots=True)
class _Draft:
    """Communicator whose lines are being read."""

    size: int
    devices: dict[int, RasDevice] = field(default_factory=dict)
    counts: dict[str, dict[int, int]] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    absent: dict[int, bool] = field(default_factory=dict)
    """Ranks without data, and whether their processes answered."""
    unlisted: list[tuple[str, str, int]] = field(default_factory=list)
    """Sets whose ranks are not listed: what differs, the value, and the number of ranks."""
    halves: list[str] = field(default_factory=list)

    def note(self, what: str, rank: int, value: str) -> None:
        if what == "status":
            if value in _NO_MEMBER:
                self.absent[rank] = True
            else:
                self.states[rank] = value
        elif what == "error":
            self.errors[rank] = value
        elif what and value.isdecimal() and (what in self.counts or len(self.counts) < MAX_KINDS):
            self.counts.setdefault(what, {})[rank] = int(value)

    def fill(self) -> None:
        """Give the value of the only set without a list to the ranks that are in no list."""
        kinds = Counter(what for what, _, _ in self.unlisted)
        for what, value, count in self.unlisted:
            if kinds[what] > 1 or what == "error":
                self.halves.append(f"{count} ranks: {what} {value}")
                continue
            if what != "status" and what not in self.counts and len(self.counts) >= MAX_KINDS:
                continue
            values = self.states if what == "status" else self.counts.get(what, {})
            for rank in [listed for listed in range(self.size) if listed not in values and listed not in self.absent]:
                self.note(what, rank, value)


def read_text(text: str) -> Snapshot:
    """Read an answer to ``VERBOSE STATUS``. Raises ``AnswerError``, also where it was cut off."""
    version = _VERSION.match(text)
    if version is None:
        raise AnswerError("not an answer of NCCL RAS: it does not begin with NCCL's version")
    if "\nWarnings\n========\n" not in text:
        raise AnswerError("cut off: it has no section of warnings")
    lines = text.splitlines()
    rows = [row for line in lines if (row := _ROW.fullmatch(line.rstrip()))]
    reader = _TextReader({row[1]: int(row[5]) for row in rows if 0 < int(row[5]) <= LARGEST})
    for line in lines:
        reader.read(line)
    return Snapshot(
        nccl_version=version[1],
        communicators=[_communicator(name, draft, reader.dead) for name, draft in reader.drafts.items()],
        total=sum(int(row[2]) for row in rows),
        gpus=_gpus(lines),
        timeouts=reader.timeouts,
    )


class _TextReader:
    """Reads line by line. ``sizes``: of the communicators, by group."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self._sizes = sizes
        self._ranks = 0
        self.drafts: dict[str, _Draft] = {}
        self.dead: set[tuple[str, int]] = set()
        self.timeouts = 0
        self._draft: _Draft | None = None
        self._section = ""
        """Title above the line: of the job, or of a communicator."""
        self._difference_kind = ""
        """What differs: ``status``, ``error``, or a kind of collective."""
        self._value = ""
        self._size = self._remaining_ranks = 0
        """Number of ranks of the last set, with ``_value``, and of those of them that may still follow one by one."""

    def read(self, line: str) -> None:
        """Read the next line."""
        if head := _HEAD.fullmatch(line):
            self._begin(head)
        elif not line.startswith("  "):
            if line:
                self._draft, self._section = None, line
        elif self._draft is not None:
            self._of_communicator(self._draft, line)
        elif match := _TIMEOUTS.match(line):
            self.timeouts = int(match[1])
        elif self._section == "DEAD" and (match := _PROCESS.match(line)):
            self.dead.add((match[2], int(match[1])))

    def _begin(self, head: re.Match[str]) -> None:
        size = self._sizes.get(head[1], 0)
        if size and head[2] not in self.drafts:
            self._ranks += size
            if self._ranks > MAX_RANKS:
                raise AnswerError(f"its communicators have more than {MAX_RANKS:,} ranks")
            self.drafts[head[2]] = _Draft(size)
        self._draft, self._section = self.drafts.get(head[2]), head[3]
        self._difference_kind, self._remaining_ranks = "error" if head[3] == "ERROR" else "", 0

    def _of_communicator(self, draft: _Draft, line: str) -> None:
        if match := _DIFFERENT.fullmatch(line):
            self._difference_kind = match[1] or "status"
        elif match := _LIST.fullmatch(line):
            self._list(draft, [int(number) for number in match[2].split(",") if number], reachable=match[1] == "unknown")
        elif match := _SET.fullmatch(line):
            self._remaining_ranks, self._value = int(match[1]), _value(match)
            draft.unlisted.append((self._difference_kind, self._value, self._remaining_ranks))
            self._size = self._remaining_ranks
        elif (match := _RANK.fullmatch(line)) and int(match[1]) < draft.size:
            self._rank(draft, int(match[1]), match)

    def _list(self, draft: _Draft, ranks: list[int], *, reachable: bool) -> None:
        draft.absent.update({rank: reachable for rank in ranks if rank < draft.size})
        if draft.unlisted and draft.unlisted[-1][1] in _NO_MEMBER:
            draft.unlisted.pop()

    def _rank(self, draft: _Draft, rank: int, match: re.Match[str]) -> None:
        if device := _DEVICE.fullmatch(match[6] or ""):
            draft.devices[rank] = RasDevice(device[4], int(device[3]), int(device[2] or device[1]))
        if self._section == "INCOMPLETE":
            draft.absent[rank] = False
        elif any(match.group(2, 3, 4, 5)):
            draft.note(self._difference_kind, rank, _value(match))
        elif self._remaining_ranks:
            self._remaining_ranks -= 1
            if draft.unlisted[-1:] == [(self._difference_kind, self._value, self._size)]:
                draft.unlisted.pop()
            draft.note(self._difference_kind, rank, self._value)


def _value(match: re.Match[str]) -> str:
    """Return what a line of a set or a rank says: a count, a status, or an error."""
    launched, none, status, error = match.group(2, 3, 4, 5)
    return launched or ("0" if none else status or error.lower())


def _gpus(lines: list[str]) -> int | None:
    """Return the number of GPUs: the last of the numbers below ``(total)`` in the summary of the job."""
    for title, row in pairwise(lines):
        if title.rstrip().endswith("(total)") and _NUMBERS.fullmatch(row.rstrip()):
            return int(row.split()[-1]) or None
    return None


def _communicator(name: str, draft: _Draft, dead: set[tuple[str, int]]) -> Communicator:
    draft.fill()
    listed = {*draft.devices, *draft.states, *draft.errors, *(rank for counts in draft.counts.values() for rank in counts)}
    return Communicator(
        name=f"0x{name.lstrip('0') or '0'}",
        key=name,
        size=draft.size,
        members={
            rank: Member(
                draft.devices.get(rank),
                _STATES.get(draft.states.get(rank, "")),
                {kind: counts[rank] for kind, counts in draft.counts.items() if rank in counts},
                draft.errors.get(rank),
            )
            for rank in sorted(listed - draft.absent.keys())
        }
        | {rank: _lost(draft.devices.get(rank), dead, answered=answered) for rank, answered in sorted(draft.absent.items())},
        halves=tuple(draft.halves),
    )


def _lost(device: RasDevice | None, dead: set[tuple[str, int]], *, answered: bool) -> Member:
    is_dead = device is not None and (device.host, device.pid) in dead
    return Member(device, loss="dead" if is_dead else "left" if answered else "unreachable")
