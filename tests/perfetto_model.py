"""Model of how Perfetto's trace processor reads a Chrome JSON file, as far as the tests need it.

It follows the rules of the JSON importer:

- Events are read in order of time; those of the same time in the order of the file.
- A slice that begins inside another slice of its thread and ends after it is dropped.
- Microseconds become nanoseconds via a float64 whose fraction is cut off.
- Threads are identified by their id alone.
- An arrow is attached to the innermost open slice of its thread.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def nanoseconds(us: float) -> int:
    return us * 1000 if isinstance(us, int) else int(us * 1000.0)


@dataclass
class Slice:
    name: str
    start: int
    end: int
    track: str
    process: str
    depth: int
    kind: str
    args: dict[str, Any]


@dataclass
class Model:
    document: dict[str, Any]
    slices: list[Slice] = field(default_factory=list)
    dropped: list[dict[str, Any]] = field(default_factory=list)
    counters: dict[tuple[str, str], list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    arrows: list[tuple[Slice, Slice]] = field(default_factory=list)
    lost_arrows: int = 0
    processes: list[str] = field(default_factory=list)
    """Names of the processes, in display order."""

    def of(self, kind: str, process: str = "") -> list[Slice]:
        return [slice_ for slice_ in self.slices if slice_.kind == kind and slice_.process.startswith(process)]

    def tracks(self, process: str) -> list[str]:
        return list(dict.fromkeys(slice_.track for slice_ in self.slices if slice_.process.startswith(process)))


@dataclass
class _Names:
    processes: dict[int, str] = field(default_factory=dict)
    orders: dict[int, int] = field(default_factory=dict)
    threads: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, events: list[dict[str, Any]]) -> _Names:
        names = cls()
        process_of: dict[int, int] = {}
        for event in events:
            assert {"ph", "ts", "pid", "tid", "name"} <= event.keys(), event
            assert isinstance(event["name"], str)
            assert nanoseconds(event["ts"]) >= 0
            assert 0 <= event["pid"] < 2**32
            assert 0 <= event["tid"] < 2**32
            assert process_of.setdefault(event["tid"], event["pid"]) == event["pid"], "one thread id in two processes"
            if event["name"] == "process_name":
                names.processes[event["pid"]] = event["args"]["name"]
            elif event["name"] == "process_sort_index":
                names.orders[event["pid"]] = event["args"]["sort_index"]
            elif event["name"] == "thread_name":
                names.threads[event["tid"]] = event["args"]["name"]
        return names


def load(data: bytes) -> Model:
    document = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    model, names = Model(document), _Names.of(document["traceEvents"])
    model.processes = [names.processes[pid] for pid in sorted(names.processes, key=lambda pid: names.orders[pid])]
    open_on: dict[int, list[Slice]] = defaultdict(list)
    begun: dict[Any, Slice] = {}
    events = [event for event in document["traceEvents"] if event["ph"] != "M"]
    for event in sorted(events, key=lambda event: nanoseconds(event["ts"])):
        at, stack = nanoseconds(event["ts"]), open_on[event["tid"]]
        while stack and stack[-1].end <= at:
            stack.pop()
        match event["ph"]:
            case "X" | "i":
                _add_slice(model, names, event, at, stack)
            case "C":
                for unit, value in event["args"].items():
                    model.counters[names.processes[event["pid"]], f"{event['name']} {unit}"].append((at, value))
            case "s" | "f":
                _add_arrow(model, begun, event, stack)
            case _:
                raise AssertionError(event)
    return model


def _add_slice(model: Model, names: _Names, event: dict[str, Any], at: int, stack: list[Slice]) -> None:
    end = at + nanoseconds(event.get("dur", 0))
    if stack and end > stack[-1].end:
        model.dropped.append(event)
        return
    where = (names.threads[event["tid"]], names.processes[event["pid"]], len(stack))
    stack.append(Slice(event["name"], at, end, *where, event["cat"], event.get("args", {})))
    model.slices.append(stack[-1])


def _add_arrow(model: Model, begun: dict[Any, Slice], event: dict[str, Any], stack: list[Slice]) -> None:
    key = (event["id"], event["cat"], event["name"])
    if not stack or (event["ph"] == "f" and (event["bp"] != "e" or key not in begun)):
        model.lost_arrows += 1
    elif event["ph"] == "s":
        begun[key] = stack[-1]
    else:
        model.arrows.append((begun[key], stack[-1]))


def load_file(path: Path) -> Model:
    return load(path.read_bytes())
