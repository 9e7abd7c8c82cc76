"""What a rank hands to its helper process: who it is at the start, then entries through the ring."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import Final

import msgspec

from rankscope.profiler.settings import RecorderSettings
from rankscope.runs.records import AttemptInfo, RankInfo, RunInfo

RING_FILE: Final = "ring"
HELLO_FILE: Final = "hello.json"


class EntryKind(IntEnum):
    """What an entry of the ring is."""

    STEP = 1
    """A packed ``StepEntry``."""
    WINDOW = 2
    """An encoded ``Window``: a trace is waiting in local memory."""
    MISSED_WINDOW = 3
    """A window that could not be recorded; the payload is the reason."""
    DEVICE = 4
    """A packed ``DeviceEntry``."""
    RAW_STEP = 5
    """A packed ``RawStep``: a step that the helper has to understand."""
    SPAN = 6
    """A packed ``raw.Span``: the usage of the thread in the last steps before it ended."""


class Window(msgspec.Struct, frozen=True):
    """A profiled window whose trace lies at ``path``; steps ``first`` to ``last``, both included."""

    path: str
    first: int
    last: int
    keep_trace: bool = False
    """Somebody asked for the trace itself."""


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The first and only file a rank writes for its helper, in their scratch folder."""

    settings: RecorderSettings
    run: RunInfo
    attempt: AttemptInfo
    rank: RankInfo
    process_unix_ns: int | None = None
    """When the rank's process began."""


def read_hello(scratch: Path) -> Hello:
    """Read what the rank left. Raises ``OSError`` or ``msgspec.DecodeError``."""
    return msgspec.json.decode((scratch / HELLO_FILE).read_bytes(), type=Hello)
