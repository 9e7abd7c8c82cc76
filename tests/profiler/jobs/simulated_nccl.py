"""Ranks on gloo that never wait for each other, and leave what a simulated tensor-parallel NCCL job with a slow rank would leave.

With ``inspector`` each process writes the log of NCCL Inspector, as the plugin does. With ``flight`` torch's function that dumps
the Flight Recorder returns the simulated one. All times are those of the steps that are really taken. ``nothing``: neither.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

sys.path.append(str(Path(__file__).parents[3]))

from tests.nccl.dumps import write_dumps
from tests.nccl.faults import FAULTS
from tests.nccl.inspector import host_and_pid, write_logs
from tests.nccl.layouts import Layout, LayoutJob
from tests.nccl.traces import BASE_NS

_TIMES = ("dump_timestamp_us", "coll_start_ts", "coll_stop_ts", "kernel_start_ts", "kernel_stop_ts", "kernel_record_ts")


def moved(record: Any, by_us: int) -> Any:
    """Return a log record at another time, of this process."""
    if isinstance(record, dict):
        own = {"hostname": socket.gethostname(), "pid": os.getpid()}
        return {
            name: value + by_us if name in _TIMES else own[name] if name in own else moved(value, by_us)
            for name, value in record.items()
        }
    return [moved(item, by_us) for item in record] if isinstance(record, list) else record


class Played:
    """What one rank of the simulated job leaves, by step."""

    def __init__(self, job: LayoutJob, rank: int, kind: str) -> None:
        notes = [note for note in job.ranks[rank].notes if note.name.startswith("ProfilerStep#")]
        self.starts_us = [note.start_us for note in notes]
        self.step_s = max(note.end_us - note.start_us for note in notes) / 1e6
        self.by_step: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
        self.kind = kind
        with tempfile.TemporaryDirectory() as folder:
            if kind == "inspector":
                host, pid = host_and_pid(rank)
                lines = (write_logs(job, Path(folder), verbose=True) / f"{host}-pid{pid}.log").read_text().splitlines()
                for record in map(json.loads, lines):
                    self._add(record, record["coll_perf"]["event_trace_ts"]["coll_start_ts"] - BASE_NS // 1000)
                self.log = Path(os.environ["NCCL_INSPECTOR_DUMP_DIR"], f"{socket.gethostname()}-pid{os.getpid()}.log")
                self.log.write_text("")
            elif kind == "flight":
                write_dumps(job, Path(folder))
                self.dump = json.loads(Path(folder, f"dump_{rank}.json").read_text())
                for entry in self.dump["entries"]:
                    self._add(entry, (entry["time_created_ns"] - BASE_NS) / 1000)
                self.entries: list[dict[str, Any]] = []

    def _add(self, record: dict[str, Any], at_us: float) -> None:
        self.by_step[sum(start <= at_us for start in self.starts_us) - 1].append(record)

    def step(self, number: int) -> None:
        """Leave what the job leaves in a step, now."""
        by_us = time.time_ns() // 1000 - BASE_NS // 1000 - round(self.starts_us[number])
        if self.kind == "inspector":
            text = "".join(json.dumps(moved(record, by_us)) + "\n" for record in self.by_step[number])
            # A reader may see half of a record.
            for part in (text[: len(text) // 2 + 7], text[len(text) // 2 + 7 :]):
                with self.log.open("a") as file:
                    file.write(part)
        elif self.kind == "flight":
            self.entries += [{**item, "time_created_ns": item["time_created_ns"] + 1000 * by_us} for item in self.by_step[number]]

    def recorder(self) -> bytes:
        """Return the dump of the recorder."""
        return pickle.dumps(self.dump | {"entries": self.entries[-int(os.environ["TORCH_FR_BUFFER_SIZE"]) :]})


def main(kind: str, steps: int) -> None:
    """Train."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    played = Played(LayoutJob(Layout("tp", 1, inner=size), FAULTS["slow device"], late=1, steps=steps), rank, kind)
    if kind == "flight":
        from rankscope.profiler.rank.gpu import flight_dump

        flight_dump._dumpers = lambda: {"nccl": lambda **_: played.recorder()}
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        began = time.monotonic()
        played.step(step)
        model(torch.randn(8, 16)).square().mean().backward()
        time.sleep(max(0.0, began + played.step_s + 0.02 - time.monotonic()))
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
