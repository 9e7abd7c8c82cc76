"""Logs of the NCCL Inspector plugin of a simulated NCCL job, one per process.

- NCCL numbers the collectives of each communicator and kind apart, from 0; the plugin numbers all sends and receives of a
  communicator together, from 1.
- A single send or receive is on a communicator of the two ranks, a batch on that of the group, as torch issues them.
- A dump thread writes what has completed since its last dump, communicator by communicator. Records have the time of the dump.
  Each process dumps at moments of its own.
- Plugins before NCCL 2.30 (``old``) write only the last completed collective of each communicator, no sends and receives, and no
  ``comm_name``.
- An uneven all-to-all is a batch of sends and receives, as torch issues it.
- Durations are whole microseconds of the kernel.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.nccl.device import Launch, NcclJob, Rank
from tests.nccl.traces import BASE_NS, ON_HOST

_NAMES: Final = {
    "all_reduce": "AllReduce",
    "_all_gather_base": "AllGather",
    "_reduce_scatter_base": "ReduceScatter",
    "all_to_all": "All2All",
}
_INTERVAL_US: Final = 500
"""Time between dumps."""
_LEAST_BYTES: Final = 8192
"""Size of messages below which the plugin ignores them."""


def write_logs(
    job: NcclJob,
    folder: Path,
    *,
    ranks: Sequence[int] | None = None,
    verbose: bool = False,
    old: bool = False,
) -> Path:
    """Write the logs of all or some ranks, and return their folder."""
    folder.mkdir(exist_ok=True)
    for rank in job.ranks if ranks is None else [job.ranks[number] for number in ranks]:
        host, pid = host_and_pid(rank.rank)
        rows = _records(rank, verbose=verbose, old=old)
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        (folder / f"{host}-pid{pid}.log").write_text(text)
    return folder


def host_and_pid(rank: int) -> tuple[str, int]:
    """Return the process of a rank. Process ids ascend with the rank on each host."""
    return f"node{rank // ON_HOST}", 4000 + 7 * (rank % ON_HOST)


def communicator(name: str) -> str:
    """Return the identifier of a group's communicator."""
    return f"0x{int.from_bytes(name.encode()[-7:].rjust(7, b'x'), 'big'):x}"


class _Record(NamedTuple):
    dump: int
    members: tuple[int, ...]
    """Ranks of the communicator."""
    name: str
    """Name of the communicator."""
    number: int
    launch: Launch
    part: tuple[str, int, int] | None
    """Operation, place of the other rank in the communicator, and elements of a send or receive."""


def _records(rank: Rank, *, verbose: bool, old: bool) -> Iterator[dict[str, Any]]:
    done: list[_Record] = []
    numbers: Counter[tuple[str, str]] = Counter()
    for launch in rank.launches:
        if not launch.op:
            continue
        name, members = launch.group, tuple(rank.job.groups[launch.group])
        dump = _dump(rank, launch)
        parts = _parts(launch)
        for op, place, elements in parts:
            other = place
            if launch.op in ("send", "recv"):
                pair = tuple(sorted((rank.rank, rank.job.groups[launch.group][place])))
                name, members, other = f"{pair[0]}-{pair[1]}", pair, pair.index(rank.job.groups[launch.group][place])
            if elements and 2 * elements >= _LEAST_BYTES:
                numbers[name, "p2p"] += 1
                done.append(_Record(dump, members, name, numbers[name, "p2p"], launch, (op, other, elements)))
        if not parts:
            number = numbers[name, launch.op]
            numbers[name, launch.op] += 1
            if 2 * launch.elements[0] >= _LEAST_BYTES:
                done.append(_Record(dump, members, name, number, launch, None))
    done.sort(key=lambda operation: (operation.dump, operation.name, operation.part is not None, operation.launch.end_us))
    for _, same in groupby(done, key=lambda operation: (operation.dump, operation.name)):
        batch = [operation for operation in same if not (old and operation.part)]
        for record in batch[-1:] if old else batch:
            yield _header(rank, record, old=old) | _perf(record, verbose=verbose)


def _parts(launch: Launch) -> list[tuple[str, int, int]]:
    """Return the sends and receives of a launch: operation, place of the other rank, and elements."""
    if launch.splits is None:
        return launch.parts
    ends = zip(("send", "recv"), launch.splits, strict=True)
    return [(op, place, size) for op, sizes in ends for place, size in enumerate(sizes)]


def _dump(rank: Rank, launch: Launch) -> int:
    phase = 137 * rank.rank % _INTERVAL_US
    return BASE_NS // 1000 + (int(launch.end_us - phase) // _INTERVAL_US + 1) * _INTERVAL_US + phase


def _header(rank: Rank, record: _Record, *, old: bool) -> dict[str, Any]:
    members = record.members
    host, pid = host_and_pid(rank.rank)
    place = {"rank": members.index(rank.rank), "n_ranks": len(members), "nnodes": len({member // ON_HOST for member in members})}
    return {
        "header": {"id": communicator(record.name)} | ({} if old else {"comm_name": "unknown"}) | place,
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": record.dump,
            "hostname": host,
            "pid": pid,
        },
    }


def _perf(record: _Record, *, verbose: bool) -> dict[str, Any]:
    launch = record.launch
    kind = "coll" if record.part is None else "p2p"
    own: dict[str, Any]
    if record.part is not None:
        op, peer, elements = record.part
        own = {"p2p": op.capitalize(), "p2p_sn": record.number, "p2p_peer": peer}
    else:
        elements = launch.elements[0]
        own = {"coll": _NAMES[launch.op], "coll_sn": record.number}
    took = round(launch.end_us - launch.start_us)
    own |= {
        f"{kind}_msg_size_bytes": 2 * elements,
        f"{kind}_exec_time_us": took,
        f"{kind}_timing_source": "kernel_gpu",
        f"{kind}_algobw_gbs": round(2 * elements / max(took, 1) / 1000, 6),
        f"{kind}_busbw_gbs": round(2 * elements / max(took, 1) / 1000, 6),
    }
    if verbose:
        base = BASE_NS // 1000
        start, stop = base + round(launch.start_us), base + round(launch.end_us)
        kernel = {"channel_id": 0, "kernel_start_ts": start, "kernel_stop_ts": stop, "kernel_record_ts": stop}
        issued = base + round(launch.launched_us)
        own["event_trace_ts"] = {f"{kind}_start_ts": issued, f"{kind}_stop_ts": issued + 5, "kernel_events": [kernel]}
    return {f"{kind}_perf": own}
