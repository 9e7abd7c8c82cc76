"""Traces of several ranks that a tool merged into one file: which events are of which rank.

SGLang puts the rank before every process id (``[TP01-PP00] 4711``). TraceLens renumbers the processes, and adds the argument
``rank`` to every event. Other tools leave the processes as they are; then only collectives show the ranks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.operations import operation, operation_name
from rankscope.analysis.trace.categories import COPY, KERNEL, LAUNCHED, LEFT_OUT, NOTE, OPERATOR
from rankscope.analysis.trace.classify import CPU_COMMUNICATION, asks_for_communication
from rankscope.analysis.trace.event_stream import EventStream
from rankscope.analysis.trace.intervals import distinct
from rankscope.analysis.trace.locations import Location
from rankscope.analysis.trace.numbering import Processes, are_named, process_id
from rankscope.analysis.trace.runtime_calls import GIVES_WORK
from rankscope.analysis.trace.schema import ANY_MERGED_EVENT, PROCESS_NAME, EventArgs, Label, Mark, integer, process_name, rank_of
from rankscope.analysis.trace.trace_text import TraceText
from rankscope.base.errors import InputError


def called_rank(args: EventArgs, group: Sequence[int] | None, world_size: int | None) -> int | None:
    """Return the rank that called a collective; ``None`` where its arguments do not tell.

    ``group``: ranks of its process group, where known. A list of more than 30 ranks is cut in the arguments.
    """
    position = integer(args.rank)
    # With a root or a peer, it is their position in the group.
    if position is None or operation(operation_name(args.collective or "")).family is None:
        return None
    size = integer(args.group_size)
    listed = [int(rank) for rank in re.findall(r"\d{1,9}", str(args.group_ranks or ""))]
    if group is None and listed and (size is None or len(listed) == size):
        group = listed
    if group is not None:
        return group[position] if position < len(group) else None
    covers_job = size is not None and size == world_size and not listed
    begins_with_the_job = "..." in str(args.group_ranks) and listed[:2] == [0, 1]
    return position if (covers_job or begins_with_the_job) and position < (size or position + 1) else None


_LABEL: Final = re.compile(r"\[([^\]]{1,200})\]|(rank[\s_:#=-]*\d{1,7})(?![^\W_])", re.IGNORECASE)
"""Label of a rank at the begin of a process id or of a process's name: ``[TP00] 7``, ``rank 3``, ``rank3_4711``."""
_PART: Final = re.compile(r"([A-Za-z]*)[\s_:#=-]*(\d{1,7})")
"""Part of such a label: a kind of parallelism and a number."""
_OWN_IDS: Final = 0.9
_OTHER_IDS: Final = 0.5
"""Smallest share of a device's events that the process that launched them has, and largest share of any other process: each
process counts its correlation ids from 1."""
_MAX_PROCESSES: Final = 4096
"""Largest number of processes whose ranks are looked for."""
_ADVICE: Final = "the traces of several ranks merged into one file; give the files before merging"


class RankRows(msgspec.Struct, frozen=True):
    """Rows of a merged file that are of one rank."""

    rank: int
    process: str
    """Label of the rank, or id of its process."""
    processes: frozenset[str]
    """Ids of all its processes, as on host and devices."""
    rows: NDArray[np.bool_]


def ranks_in_file(
    path: Location,
    columns: Mapping[str, NDArray[Any]],
    names: Sequence[str],
    processes: Processes,
    communication_args: Mapping[int, EventArgs],
    *,
    world_size: int | None,
) -> list[RankRows]:
    """Return the rows of each rank in a file, ordered by rank; nothing for the usual file of one rank.

    Raises ``InputError`` for a merged file where it is not certain which events are of which rank.
    """
    merged = _MergedFile(path, columns, processes, communication_args, world_size)
    hosts = merged.hosts(names)
    members = hosts | merged.on_device
    labels = _labels(processes.ids)
    if not _distinguish(labels, members):
        if len(hosts) <= 1 and len(set().union(*merged.collective_ranks.values())) <= 1:
            return []
        labels = _read_labels(path, processes)
    return merged.by_label(hosts, labels, members) if _distinguish(labels, members) else merged.by_process(hosts)


class _MergedFile:
    """File that may have several ranks."""

    def __init__(
        self,
        path: Location,
        columns: Mapping[str, NDArray[Any]],
        processes: Processes,
        communication_args: Mapping[int, EventArgs],
        world_size: int | None,
    ) -> None:
        self._path = path
        self._columns = columns
        self._processes = processes
        self._communication_args = communication_args
        self._world_size = world_size
        kinds = LEFT_OUT + 1
        by_thread = np.bincount(columns["thread"] * kinds + columns["category"], minlength=len(processes.of_thread) * kinds)
        self._events = np.zeros((len(processes.ids), kinds), dtype=np.int64)
        """Number of events by process and category."""
        np.add.at(self._events, processes.of_thread, by_thread.reshape(-1, kinds))
        self.on_device = self._having(KERNEL, COPY)
        """Processes with device events: Kineto's are the numbers of the devices."""

    def _having(self, *categories: int) -> set[int]:
        return set(np.flatnonzero(self._events[:, categories].any(axis=1)).tolist())

    def _rows(self, processes: Collection[int]) -> NDArray[np.bool_]:
        chosen = np.isin(np.arange(len(self._processes.ids)), list(processes))
        rows: NDArray[np.bool_] = chosen[self._processes.of_thread][self._columns["thread"]]
        return rows

    def hosts(self, names: Sequence[str]) -> set[int]:
        """Return the processes that launched device work; those that communicate where none launched any."""
        categories, is_host = ((LAUNCHED,), GIVES_WORK.search) if self._having(LAUNCHED) else ((OPERATOR, NOTE), _communicates)
        candidates = self._having(*categories)
        if len(candidates) < 2:
            return candidates
        rows = np.flatnonzero(np.isin(self._columns["category"], categories))
        rows = rows[are_named(names, self._columns["name"][rows], is_host)]
        return set(distinct(self._processes.of_thread[self._columns["thread"][rows]]))

    @cached_property
    def collective_ranks(self) -> dict[int, set[int]]:
        """Ranks that called collectives, by process, as far as the arguments of the collectives have them."""
        described = {row: args for row, args in self._communication_args.items() if args.rank is not None}
        processes = self._processes.of_thread[self._columns["thread"][list(described)]].tolist() if described else []
        ranks: dict[int, set[int]] = {}
        for process, args in zip(processes, described.values(), strict=True):
            if (rank := called_rank(args, None, self._world_size)) is not None:
                ranks.setdefault(process, set()).add(rank)
        return ranks

    def _ranks_of(self, processes: Iterable[int]) -> set[int]:
        return set().union(*(self.collective_ranks.get(process, ()) for process in processes))

    def by_label(self, hosts: Collection[int], labels: Mapping[int, str], relevant: Collection[int]) -> list[RankRows]:
        """Return the rows of each rank where the processes have labels of ranks."""
        members: dict[str, list[int]] = {labels[process]: [] for process in sorted(relevant)}
        for process, label in labels.items():
            if label in members:
                members[label].append(process)
        several = [label for label, processes in members.items() if len(set(hosts).intersection(processes)) > 1]
        if several:
            raise InputError(self._path, f"several processes have the label [{several[0]}]: {_ADVICE}")
        called = {label: self._ranks_of(processes) for label, processes in members.items()}
        ranks = _distinct_ranks(called) or ranks_of_labels(list(members), self._world_size)
        if len(members) > _MAX_PROCESSES or ranks is None or any(own - {ranks[label]} for label, own in called.items()):
            raise InputError(self._path, f"the ranks of the labels {_listed(members)} are not certain: {_ADVICE}")
        return self._apart({ranks[label]: (label, processes) for label, processes in members.items()})

    def by_process(self, hosts: Collection[int]) -> list[RankRows]:
        """Return the rows of each rank where collectives show the ranks of the processes."""
        ranks = {process: self._ranks_of([process]) for process in {*hosts, *self.on_device}}
        host_ranks = _distinct_ranks({process: ranks[process] for process in hosts}) if hosts else {}
        if len(ranks) > _MAX_PROCESSES or host_ranks is None or any(len(several) > 1 for several in ranks.values()):
            raise InputError(self._path, self._refusal(hosts))
        members = {rank: (self._processes.ids[host], [host]) for host, rank in host_ranks.items()}
        for device in self.on_device - set(hosts):
            rank = next(iter(ranks[device]), None)
            if rank is None and (owner := self._owner(device, hosts)) is not None:
                rank = host_ranks[owner]
            if rank is None or (hosts and rank not in members):
                raise InputError(self._path, self._refusal(hosts))
            members.setdefault(rank, (self._processes.ids[device], []))[1].append(device)
        return self._apart(members)

    def _owner(self, device: int, hosts: Collection[int]) -> int | None:
        """Return the process that launched the events of a device, by their correlation ids; ``None`` if that is not certain."""
        category, correlation = self._columns["category"], self._columns["correlation"]
        ids = correlation[self._rows([device]) & (category <= COPY) & (correlation >= 0)]
        if not len(ids):
            return None
        shares = {host: np.isin(ids, correlation[self._rows([host]) & (category == LAUNCHED)]).mean() for host in hosts}
        owners = [host for host, share in shares.items() if share >= _OWN_IDS]
        return owners[0] if len(owners) == 1 and sum(share >= _OTHER_IDS for share in shares.values()) == 1 else None

    def _refusal(self, hosts: Collection[int]) -> str:
        if len(hosts) < 2:
            return f"its collectives are of {len(self._ranks_of(self.collective_ranks))} ranks: {_ADVICE}"
        activity = "launched device work" if self._having(LAUNCHED) else "communicated"
        return f"{len(hosts)} processes have {activity}: {_ADVICE}"

    def _apart(self, members: Mapping[int, tuple[str, list[int]]]) -> list[RankRows]:
        ids = self._processes.ids
        return [
            RankRows(rank, label, frozenset(ids[process] for process in processes), self._rows(processes))
            for rank, (label, processes) in sorted(members.items())
        ]


def ranks_of_labels(labels: Sequence[str], world_size: int | None) -> dict[str, int] | None:
    """Return the rank of each label; ``None`` where the labels do not make the ranks certain.

    A label with one number has the rank as that number. In others the ranks of one stage of a pipeline follow each other, as in
    SGLang and Megatron; data and expert parallelism count only where they are between the same ranks.
    """
    numbers = [{kind.upper(): int(number) for kind, number in _PART.findall(label)} for label in labels]
    kinds = set(numbers[0])
    if not kinds or any(set(parts) != kinds for parts in numbers):
        return None
    if len(kinds) == 1:
        ranks = [next(iter(parts.values())) for parts in numbers]
    elif "TP" in kinds:
        width = max(parts["TP"] for parts in numbers) + 1
        ranks = [parts.get("PP", 0) * width + parts["TP"] for parts in numbers]
        if any(parts.get("PP", 0) for parts in numbers) and (
            world_size != len(labels) or sorted(ranks) != list(range(len(labels)))
        ):
            return None  # the number of ranks of a stage is not certain
    else:
        return None
    if len(set(ranks)) < len(ranks) or (world_size is not None and max(ranks) >= world_size):
        return None
    return dict(zip(labels, ranks, strict=True))


def _distinguish(labels: Mapping[int, str], processes: Collection[int]) -> bool:
    """Return whether all of some processes have labels, which are not all the same."""
    return labels.keys() >= set(processes) and len({labels[process] for process in processes}) > 1


def _labels(texts: Iterable[str]) -> dict[int, str]:
    """Return the labels of ranks that some texts begin with, by the position of the text."""
    matches = enumerate(_LABEL.match(text.strip()) for text in texts)
    return {number: match[1] or match[2] for number, match in matches if match is not None}


def _read_labels(path: Location, processes: Processes) -> dict[int, str]:
    """Return the labels of ranks that the file gives by the names of processes, or by the argument ``rank`` of events.

    This reads the file again: nothing of it is needed for the usual file of one rank.
    """
    numbers = {pid: number for number, pid in enumerate(processes.ids)}
    names = [""] * len(numbers)
    ranks: dict[int, str] = {}
    for events in EventStream[Any](path, TraceText(path), ANY_MERGED_EVENT):
        for event in events:
            if isinstance(event, Mark) or (number := numbers.get(process_id(event.pid))) is None:
                continue
            if isinstance(event, Label):
                if event.name == PROCESS_NAME:
                    names[number] = process_name(event)
            elif number not in ranks and event.args is not None and (rank := rank_of(event.args.rank)) is not None:
                ranks[number] = f"rank {rank}"
    return ranks | _labels(names)


def _distinct_ranks(ranks: Mapping[Any, Collection[int]]) -> dict[Any, int] | None:
    """Return the rank of each key if each has one of its own, else ``None``."""
    if any(len(several) != 1 for several in ranks.values()):
        return None
    own = {key: next(iter(several)) for key, several in ranks.items()}
    return own if len(set(own.values())) == len(own) else None


def _communicates(name: str) -> bool:
    return asks_for_communication(name) or name.startswith(CPU_COMMUNICATION)


def _listed(labels: Iterable[str]) -> str:
    """Return the first labels for a message."""
    shown = [f"[{label}]" for label in labels]
    return ", ".join(shown[:4]) + (", …" if len(shown) > 4 else "")
