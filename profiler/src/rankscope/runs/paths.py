"""Paths inside a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

SPOOL_DIR: Final = Path("/run/rankscope/spool")
"""Default folder in which the ranks of a node leave their metrics (``*.prom``) for the exporter."""

RankStream = Literal["events", "steps", "windows", "collectives", "kernels", "stacks", "durations"]
"""Streams that each rank writes in its own folder: ``steps`` as rows, the others as JSON Lines."""
RANK_STREAMS: Final[tuple[RankStream, ...]] = ("events", "steps", "windows", "collectives", "kernels", "stacks", "durations")
"""All rank streams in the order of writing: a step's event is in its file before the step's row is."""

Stream = RankStream | Literal["plan", "gpu"]
"""Rank streams, the announced windows of an attempt (``plan``) and the GPU samples of a host (``gpu``)."""


RUN_FILE: Final = "run.json"
"""Identity of a run: a folder that has it is a run directory."""


def run_file(run: Path) -> Path:
    """Return the path of ``run.json``."""
    return run / RUN_FILE


def verdict_file(run: Path) -> Path:
    """Return the path of ``verdict.json``: the verdict at the end of ``rankscope run``."""
    return run / "verdict.json"


def attempt_file(run: Path, attempt: int) -> Path:
    """Return the path of ``attempt.json``."""
    return run / f"attempts/{attempt:03d}/attempt.json"


def attempt_dir(run: Path, attempt: int) -> Path:
    """Return the path ``attempts/NNN``."""
    return run / f"attempts/{attempt:03d}"


def ranks_dir(run: Path, attempt: int) -> Path:
    """Return the path ``attempts/NNN/ranks``."""
    return run / f"attempts/{attempt:03d}/ranks"


def rank_dir(run: Path, attempt: int, rank: int) -> Path:
    """Return the path ``attempts/NNN/ranks/RRRRR``."""
    return run / f"attempts/{attempt:03d}/ranks/{rank:05d}"


def rank_file(run: Path, attempt: int, rank: int) -> Path:
    """Return the path of ``rank.json``."""
    return run / f"attempts/{attempt:03d}/ranks/{rank:05d}/rank.json"


def activity_file(run: Path, attempt: int, rank: int) -> Path:
    """Return the path of ``activity.json``."""
    return rank_dir(run, attempt, rank) / "activity.json"


def segment(folder: Path, stream: Stream, number: int) -> Path:
    """Return the path of segment ``number`` of a stream in ``folder``: ``steps-000000.npy`` or ``events-000000.jsonl``."""
    return folder / f"{stream}-{number:06d}.{suffix_of(stream)}"


def suffix_of(stream: Stream) -> str:
    """Return the suffix of a stream's segments, without the dot."""
    return "npy" if stream == "steps" else "jsonl"


def host_dir(run: Path, host: str) -> Path:
    """Return the path ``hosts/NAME``: hardware samples of a host."""
    return run / "hosts" / host


def control_dir(run: Path) -> Path:
    """Return the path ``control``: requests by people and tools, and their answers."""
    return run / "control"


def flight_dir(run: Path, attempt: int) -> Path:
    """Return ``attempts/NNN/flight``: Flight Recorder dumps of the attempt, ``rank-RRRRR-*.pickle`` or ``.json``."""
    return attempt_dir(run, attempt) / "flight"


def ras_dir(run: Path, attempt: int) -> Path:
    """Return ``attempts/NNN/ras``: answers of NCCL RAS, ``TIME.json`` with the unix nanoseconds of the question."""
    return attempt_dir(run, attempt) / "ras"


def reports_dir(run: Path, attempt: int) -> Path:
    """Return ``attempts/NNN/reports``: state of each rank for the planner of windows, ``RRRRR.json``, while the job runs."""
    return attempt_dir(run, attempt) / "reports"


def inspector_dir(run: Path) -> Path:
    """Return ``inspector-logs``: logs of NCCL Inspector while the job runs; what matters in them is in ``durations-*.jsonl``."""
    return run / "inspector-logs"


def memory_dir(run: Path) -> Path:
    """Return ``memory``: snapshots of the GPU memory of ranks that ran out of it, ``rank-RRRRR-PID.pickle``."""
    return run / "memory"


def findings_file(run: Path) -> Path:
    """Return the path ``findings.jsonl``: findings of the watcher."""
    return run / "findings.jsonl"
