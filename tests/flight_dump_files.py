"""Flight Recorder dumps as torch writes them: the entries and documents of simulated jobs, and their files."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankscope.analysis.hang.pickles import load_plain

START_NS = 1_790_000_000_000_000_000
SECOND = 10**9
TIMEOUT_MS = 600_000

Sizes = Sequence[Sequence[int]]
"""Shapes of the tensors of one side."""


def entry(
    record: int,
    name: str,
    *,
    group: tuple[str, str] = ("0", ""),
    sequence: int,
    created_ns: int,
    sizes: tuple[Sizes, Sizes],
    dtype: str = "Float",
    ended: bool = True,
    **more: Any,
) -> dict[str, Any]:
    """Return the entry of an operation. ``group``: name and description; ``sizes``: of inputs and outputs."""
    inputs, outputs = ([list(shape) for shape in side] for side in sizes)
    return {
        "record_id": record,
        "pg_id": 0,
        "process_group": group,
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": name,
        "time_created_ns": created_ns,
        "input_sizes": inputs,
        "input_dtypes": [dtype] * len(inputs),
        "output_sizes": outputs,
        "output_dtypes": [dtype] * len(outputs),
        "state": "completed" if ended else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": ended,
        "timeout_ms": TIMEOUT_MS,
        "is_p2p": False,
    } | more


def document(
    groups: Mapping[str, Sequence[int]],
    entries: Sequence[dict[str, Any]],
    *,
    descriptions: Mapping[str, str] | None = None,
    status: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the dump of a rank that is in ``groups``."""
    described = descriptions or {}
    return {
        "version": "2.10",
        "comm_lib_version": "2.28.9",
        "pg_config": {
            name: {"name": name, "desc": described.get(name, "undefined"), "ranks": str(list(members))}
            for name, members in groups.items()
        },
        "pg_status": dict(status or {}),
        "entries": list(entries),
    }


def write(folder: Path, dumps: Mapping[int, dict[str, Any]], *, form: str = "pickle", waited_s: float | None = 211.0) -> Path:
    """Write dumps under torch's file names. ``waited_s``: seconds between ``START_NS`` and the time of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, dump in dumps.items():
        path = folder / f"dump_{rank}"
        if form == "json":
            path = path.with_suffix(".json")
            path.write_text(json.dumps(as_json(dump)))
        else:
            path.write_bytes(pickle.dumps(dump, protocol=2))
        if waited_s is not None:
            taken = START_NS + int(waited_s * SECOND)
            os.utime(path, ns=(taken, taken))
    return folder


def as_json(dump: dict[str, Any]) -> dict[str, Any]:
    """Return torch's JSON form: no stacks, zeros for missing times, counts as text, and no list of entries if it is empty."""
    entries = [
        {key: (value or 0) if key.startswith("time_discovered") else value for key, value in entry.items() if key != "frames"}
        for entry in dump["entries"]
    ]
    status = {key: {name: str(value) for name, value in about.items()} for key, about in dump["pg_status"].items()}
    return (
        {**dump, "pg_status": status, "entries": entries}
        if entries
        else {**{k: v for k, v in dump.items() if k != "entries"}, "pg_status": status}
    )


def last_collective(path: Path) -> int:
    """Return the number of the last collective in a dump."""
    dump: Any = load_plain(path.read_bytes())
    return max(int(entry["collective_seq_id"]) for entry in dump["entries"])
