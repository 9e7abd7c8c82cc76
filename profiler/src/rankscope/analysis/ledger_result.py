"""Wait attribution: part of the JSON of ``rankscope analyze``."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

MAX_ROWS: Final = 256
"""Maximum number of rows listed in the matrix; the rest is summed up."""

MAX_GROUPS: Final = 64
MAX_RANKS: Final = 64
"""Maximum number of listed members of a group."""

LedgerSource = Literal["steps", "windows", "traces"]


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True):
    """Wait that one rank imposed on another in one process group."""

    group: int
    """Position in ``by_group``."""
    origin: int
    """Rank that is charged. It may be outside the group, having delayed the rank that came last there."""
    victim: int
    imposed_us: float
    imposed_exposed_us: float
    """Exposed part of ``imposed_us``, which no compute of the victim hid."""
    steps: int
    """Number of steps in which ``origin`` delayed ``victim``."""


class GroupLedger(msgspec.Struct, frozen=True, kw_only=True):
    """Imposed wait in one process group. Waits that overlap count once for each victim and step."""

    group: str | None
    """Name; ``None`` with step records, which do not record groups: the group is then the set of compared ranks."""
    size: int
    ranks: list[int]
    """Members of the group, the first 64."""
    imposed_us: float
    imposed_exposed_us: float
    worst: int | None
    """Rank that is charged with most exposed imposed wait; ``None`` when no rank waited."""


class LedgerRest(msgspec.Struct, frozen=True, kw_only=True):
    """Sum of the rows that the matrix does not list."""

    rows: int
    imposed_us: float
    imposed_exposed_us: float


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """Imposed wait by origin and victim, most costly first."""

    source: LedgerSource
    """Data source. Windows and traces have a few steps and every collective; step records have all steps and no groups."""
    steps: int
    """Number of analysed steps."""
    groups: int
    by_group: list[GroupLedger]
    """The 64 groups with the most exposed imposed wait."""
    matrix: list[LedgerRow]
    """Sparse matrix: the 256 rows with the most exposed imposed wait."""
    rest: LedgerRest
    """Sum of all other rows."""
