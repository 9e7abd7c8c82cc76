"""The part of the result that says who delayed whom."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

MAX_ROWS: Final = 256
"""Rows of the matrix that are told one by one; the rest is summed up."""

MAX_GROUPS: Final = 64
MAX_RANKS: Final = 64
"""Members of a group that are listed."""

LedgerSource = Literal["steps", "windows", "traces"]


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank made another one wait for, in one process group."""

    group: int
    """Position in ``by_group``."""
    origin: int
    """Who is charged. It need not be in the group: it may have delayed the one who came last there."""
    victim: int
    imposed_us: float
    imposed_exposed_us: float
    """The part no compute hid."""
    steps: int
    """In how many of the steps."""


class GroupLedger(msgspec.Struct, frozen=True, kw_only=True):
    """Imposed wait in one process group. Waits that overlap count once for each victim and step."""

    group: str | None
    """Its name; ``None``: step records do not tell the group, these are the ranks that were compared."""
    size: int
    ranks: list[int]
    """Its members, the first 64."""
    imposed_us: float
    imposed_exposed_us: float
    worst: int | None
    """Who is charged with most of what no compute hid; ``None`` when nobody waited."""


class LedgerRest(msgspec.Struct, frozen=True, kw_only=True):
    """What the matrix does not list."""

    rows: int
    imposed_us: float
    imposed_exposed_us: float


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """Who delayed whom, most costly first."""

    source: LedgerSource
    """What it was read from. Windows and traces see a few steps and every collective; step records all steps, and no groups."""
    steps: int
    """Steps that were looked at."""
    groups: int
    by_group: list[GroupLedger]
    """The 64 with most imposed wait."""
    matrix: list[LedgerRow]
    """Sparse: the largest 256 by what no compute hid."""
    rest: LedgerRest
    """The sum of all other rows, so that nothing is missing."""
