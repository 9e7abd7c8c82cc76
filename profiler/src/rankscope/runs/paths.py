"""Where things are inside a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

SPOOL_DIR: Final = Path("/run/rankscope/spool")
"""Where the ranks of a node leave their metrics (``*.prom``) for the exporter, unless told otherwise."""

RankStream = Literal["events", "steps", "windows", "collectives", "kernels"]
"""What each rank writes in its own folder: rows of ``steps``, and JSON Lines."""
RANK_STREAMS: Final[tuple[RankStream, ...]] = ("events", "steps", "windows", "collectives", "kernels")
"""In the order in which they are written: a step's event is there when its row is."""

Stream = RankStream | Literal["plan", "gpu"]
"""Also the announced windows of an attempt, and the GPU samples of a host."""


def run_file(run: Path) -> Path:
    """``run.json``."""
    return run / "run.json"


def attempt_dir(run: Path, attempt: int) -> Path:
    """``attempts/NNN``."""
    return run / f"attempts/{attempt:03d}"


def rank_dir(run: Path, attempt: int, rank: int) -> Path:
    """``attempts/NNN/ranks/RRRRR``."""
    return run / f"attempts/{attempt:03d}/ranks/{rank:05d}"


def segment(folder: Path, stream: Stream, number: int) -> Path:
    """Segment file ``number`` of a stream in a rank's folder: ``steps-000000.npy`` or ``events-000000.jsonl``."""
    return folder / f"{stream}-{number:06d}.{suffix_of(stream)}"


def suffix_of(stream: Stream) -> str:
    """The suffix of a stream's segments."""
    return "npy" if stream == "steps" else "jsonl"


def host_dir(run: Path, host: str) -> Path:
    """``hosts/NAME``: hardware samples of a host."""
    return run / "hosts" / host


def control_dir(run: Path) -> Path:
    """``control``: requests by people and tools, and their answers."""
    return run / "control"


def flight_dir(run: Path, attempt: int) -> Path:
    """``attempts/NNN/flight``: Flight Recorder dumps of the attempt, ``rank-RRRRR-*.pickle`` or ``.json``."""
    return attempt_dir(run, attempt) / "flight"


def findings_file(run: Path) -> Path:
    """``findings.jsonl``: what the watcher concluded."""
    return run / "findings.jsonl"
