"""One captured window with all ranks on one clock: the activity of each rank, and the collectives matched across ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from rankscope.analysis.perfetto.export_result import ExportClock
from rankscope.base.errors import InputError
from rankscope.dashboards.data.cached_files import read_arrays, read_json
from rankscope.dashboards.timeline.parts import Numbers, Parts

INFO: Final = "window.json"
COLUMNS: Final = "window.npz"


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """A collective on all of its ranks. Times are on the common clock, in nanoseconds since the window began."""

    key: str
    """``GROUP:SEQUENCE``, or ``GROUP:STEP.INDEX`` without a sequence number. For pairs and unmatched records, ``RANKS@`` follows
    the colon.
    """
    op: str
    group: str
    step: int
    bytes: int | None
    ranks: int
    matched: bool
    """True if the collective was matched across its ranks; unmatched ones have one rank each."""
    last: int | None = None
    """Rank that came last, if that is clear."""
    spread_ns: int | None = None
    """Time from the first arrival to the last, or the longest wait on a device; ``None``: not known."""
    first_ns: int

    @property
    def label(self) -> str:
        """Name of the collective as text for the user."""
        return f"{self.op} · {self.group} · {self.key.rpartition(':')[2]}"


class WindowInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of a window."""

    first: int
    past: int
    ranks: list[int]
    """Ranks of the lanes, ascending."""
    extent_ns: int
    steps: list[tuple[int, int, int]]
    """Step, begin on the first rank and end on the last, in nanoseconds since the window began."""
    clock: ExportClock
    matched: int
    unmatched: int
    collectives: list[Collective]
    raw_ranks: list[int] = []
    """Ranks whose raw trace was read."""
    lanes: list[tuple[int, str]] = []
    """Rank and name of each lane of raw events."""
    names: list[str] = []
    """Names of raw events."""
    left_out: list[str] = []
    """Omitted data, one sentence each."""


@dataclass(frozen=True, slots=True)
class LaneEvents:
    """Events of raw traces: lane, begin and end in nanoseconds since the window began, kind, and number of the name."""

    lane: Numbers
    start: Numbers
    end: Numbers
    kind: Numbers
    name: Numbers


@dataclass(frozen=True, slots=True)
class CollectiveCalls:
    """Collectives, one row per collective and rank: position of the rank, number of the collective, and times in nanoseconds
    since the window began.
    """

    row: Numbers
    collective: Numbers
    arrival: Numbers
    end: Numbers
    wait: Numbers
    """``NO_VALUE``: not known."""


@dataclass(frozen=True, slots=True)
class WindowData:
    """Data of a window."""

    info: WindowInfo
    parts: Parts
    """One lane per rank, in the order of ``info.ranks``."""
    calls: CollectiveCalls
    events: LaneEvents
    offset_ns: Numbers
    """[ranks]: offset to subtract from a rank's own times."""

    def collective(self, key: str | None) -> int | None:
        """Return the number of the collective with that key, ``None`` if there is none."""
        return next((at for at, candidate in enumerate(self.info.collectives) if candidate.key == key), None)


_SETS: Final[dict[str, type[Parts | CollectiveCalls | LaneEvents]]] = {
    "parts": Parts,
    "calls": CollectiveCalls,
    "events": LaneEvents,
}


def write_window(data: WindowData, folder: Path) -> None:
    """Write a window into ``folder``. Raises ``OSError``."""
    columns = {f"{name}_{field}": getattr(getattr(data, name), field) for name in _SETS for field in _SETS[name].__slots__}
    np.savez(folder / COLUMNS, offset_ns=data.offset_ns, **columns)
    (folder / INFO).write_bytes(msgspec.json.encode(data.info))


def read_window(folder: Path) -> WindowData:
    """Read the window that ``write_window`` wrote. Raises ``InputError``."""
    info = read_json(folder / INFO, WindowInfo, "the cached window")
    columns = read_arrays(folder / COLUMNS, "the cached window")
    try:
        sets = {name: kind(*(columns[f"{name}_{field}"] for field in kind.__slots__)) for name, kind in _SETS.items()}
        return WindowData(info=info, offset_ns=columns["offset_ns"], **sets)  # type: ignore[arg-type]
    except KeyError as error:
        raise InputError(folder, f"the cached window lacks {error}") from error
