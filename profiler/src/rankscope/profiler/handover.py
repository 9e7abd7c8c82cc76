"""Data that a rank hands to its helper process: a description of itself at the start, then words and messages in the ring."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import Final

import msgspec

from rankscope.profiler.settings import RecorderSettings
from rankscope.runs.records import AttemptInfo, RankInfo, RunInfo

RING_FILE: Final = "ring"
HANDOVER_FILE: Final = "handover.json"


class MessageKind(IntEnum):
    """Kind of a message in the ring."""

    WINDOW = 1
    """An encoded ``ProfiledWindow``: a trace in local memory is ready to be read."""
    MISSED_WINDOW = 2
    """A window that could not be recorded; the content is the reason."""
    DEVICE = 3
    """Number of a step and the times of its marks in nanoseconds since that of its start, as 8-byte integers."""
    THREAD = 4
    """Training has moved to the thread with this identifier (``threading.get_ident``), an 8-byte integer."""


class ProfiledWindow(msgspec.Struct, frozen=True):
    """Profiled window of the steps ``first`` to ``last``, both included, whose trace is at ``path``."""

    path: str
    first: int
    last: int
    keep_trace: bool = False
    """True if the request asked for the trace itself."""


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the only file that a rank writes for its helper at the start, in their scratch folder."""

    settings: RecorderSettings
    run: RunInfo
    attempt: AttemptInfo
    rank: RankInfo
    process_unix_ns: int | None = None
    """Start of the rank's process."""
    thread: int | None = None
    """Training thread, by ``threading.get_ident``; ``None``: its stack must not be sampled."""


def read_handover(scratch: Path) -> Handover:
    """Read what the rank handed over. Raises ``OSError`` or ``msgspec.DecodeError``."""
    return msgspec.json.decode((scratch / HANDOVER_FILE).read_bytes(), type=Handover)
