"""The rank's metrics as a Prometheus text file, which the node's exporter (or node_exporter's textfile collector) publishes.

What there is no signal for is left out, never written as zero.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rankscope.runs.metrics import RANK_METRICS
from rankscope.runs.records import PHASES, RankInfo, RunInfo, StepBreakdown, StepRecord

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]")
_TYPES: Final = {metric.name: metric for metric in RANK_METRICS}
_MICRO: Final = 1e-6

Labels = Mapping[str, str]
Sample = tuple[str, Labels, float]


@dataclass(slots=True)
class Totals:
    """Sums over what a rank has recorded. ``None`` until there is a first value."""

    steps: int = 0
    last_end_s: float | None = None
    wall_s: float = 0.0
    phases_s: dict[str, float] = field(default_factory=dict)
    blocked_s: float | None = None
    cpu_s: float | None = None
    samples: int | None = None
    elements: int | None = None
    profiled: int = 0
    window_s: dict[str, float] = field(default_factory=dict)

    def add_step(self, step: StepRecord) -> None:
        """Count a step."""
        self.steps += 1
        self.last_end_s = step.start_unix_ns / 1e9 + step.wall_us * _MICRO
        self.wall_s += step.wall_us * _MICRO
        for phase in PHASES:
            if (time_us := step.phases_us.get(phase)) is not None:
                self.phases_s[phase] = self.phases_s.get(phase, 0.0) + time_us * _MICRO
        if (blocked := step.blocked_total_us) is not None:
            self.blocked_s = (self.blocked_s or 0.0) + blocked * _MICRO
        if step.cpu_us is not None:
            self.cpu_s = (self.cpu_s or 0.0) + step.cpu_us * _MICRO
        if step.samples is not None:
            self.samples = (self.samples or 0) + step.samples
        if step.input_elements is not None:
            self.elements = (self.elements or 0) + step.input_elements
        self.profiled += step.profiled

    def add_window(self, breakdown: StepBreakdown) -> None:
        """Count the partition of a profiled step."""
        states = {
            "compute": breakdown.compute_us,
            "overlap": breakdown.overlap_us,
            "exposed_communication": breakdown.exposed_communication_us,
            "exposed_memcpy": breakdown.exposed_memcpy_us,
            "idle": breakdown.idle_us,
        }
        for state, time_us in states.items():
            self.window_s[state] = self.window_s.get(state, 0.0) + time_us * _MICRO


def samples(run: RunInfo, rank: RankInfo, totals: Totals) -> Iterator[Sample]:
    """Every sample there is something to say about: metric name, labels, value."""
    optional = {
        "rank_last_step_timestamp_seconds": totals.last_end_s,
        "rank_blocked_seconds_total": totals.blocked_s,
        "rank_cpu_seconds_total": totals.cpu_s,
        "rank_samples_total": totals.samples,
        "rank_input_elements_total": totals.elements,
    }
    identity = {
        "name": run.name,
        "host": rank.host,
        "local_rank": "" if rank.local_rank is None else str(rank.local_rank),
        "world_size": str(rank.world_size),
        "gpu_uuid": rank.gpu_uuid or "",
        "attempt": str(rank.attempt),
    }
    yield "rank_info", identity, 1
    yield "rank_steps_total", {}, totals.steps
    yield "rank_step_seconds_total", {}, totals.wall_s
    for name, value in optional.items():
        if value is not None:
            yield name, {}, value
    for phase, value in totals.phases_s.items():
        yield "rank_phase_seconds_total", {"phase": phase}, value
    yield "rank_profiled_steps_total", {}, totals.profiled
    for state, value in totals.window_s.items():
        yield "rank_window_seconds_total", {"state": state}, value
    if rank.recorder_cost_us is not None:
        yield "rank_recorder_seconds_total", {}, rank.recorder_cost_us * _MICRO
    yield "rank_recorder_dropped_total", {}, rank.dropped_records
    yield "rank_recorder_disabled", {}, int(rank.disabled_reason is not None)


def render(run_id: str, rank: int, values: Iterable[Sample]) -> str:
    """Prometheus text format 0.0.4 of ``values``, in the order of the table."""
    by_name: dict[str, list[str]] = {}
    for name, labels, value in values:
        pairs = {"run_id": run_id, "rank": str(rank), **labels}
        text = ",".join(f'{label}="{_escape(content)}"' for label, content in pairs.items())
        by_name.setdefault(name, []).append(f"{name}{{{text}}} {_number(value)}\n")
    return "".join(
        f"# HELP {name} {metric.help}\n# TYPE {name} {metric.type}\n{''.join(by_name[name])}"
        for name, metric in _TYPES.items()
        if name in by_name
    )


def _escape(text: str) -> str:
    # A lone surrogate (a file name that is not UTF-8) cannot be written at all.
    text = text.encode(errors="replace").decode()
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else "NaN"


class SpoolFile:
    """One rank's file in the spool folder. Raises ``OSError`` from ``write`` only."""

    def __init__(self, folder: Path, run_id: str, rank: int) -> None:
        name = f"{os.getuid()}-{_UNSAFE.sub('_', run_id)}-{rank}.prom"
        self.path = folder / name
        # Not *.prom: no collector may read it half written. The pid: nobody else has it open.
        self._temporary = folder / f".{name}.{os.getpid()}"

    def write(self, text: str) -> None:
        """Replace the file, so that a reader sees the old one or the new one."""
        self._temporary.unlink(missing_ok=True)
        # O_EXCL: the folder may be everybody's, so nothing there is trusted, least of all a link.
        handle = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            self._temporary.replace(self.path)
        except OSError:
            self._temporary.unlink(missing_ok=True)
            raise

    def remove(self) -> None:
        """The rank said goodbye: it has nothing more to report."""
        with suppress(OSError):
            self.path.unlink()


def remove_own(folder: Path, names: Iterable[str]) -> None:
    """The job is over: remove what its vanished ranks left in the spool. Never raises ``OSError``."""
    for name in names:
        with suppress(OSError):
            # The folder may be everybody's, and root may remove everybody's files.
            status = (folder / name).lstat()
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid():
                (folder / name).unlink()
