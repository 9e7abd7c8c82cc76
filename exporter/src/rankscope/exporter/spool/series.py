"""Records of a text file of the spool, after it was read and checked."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

Labels = tuple[tuple[str, str], ...]
Kind = Literal["gauge", "counter", "histogram"]


class RejectedError(Exception):
    """The file is not relayed. ``reason`` is one of a few fixed words: no content of the file may reach a label or the log."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class SpoolSeries(msgspec.Struct, frozen=True):
    """One series: full name, labels sorted by name, value."""

    name: str
    labels: Labels
    value: float


class SpoolFamily(msgspec.Struct, frozen=True):
    """One metric: its name on the page (with ``_total`` for counters), type, help text and series.

    The series of a histogram are its buckets in ascending order of their bounds, then sum and count in the order of the file.
    """

    name: str
    type: Kind
    help: str
    series: tuple[SpoolSeries, ...]


class RankKey(NamedTuple):
    """Identity of a rank's series, unique on a node."""

    run: str
    rank: str
    slot: str


class SpoolContent(msgspec.Struct, frozen=True):
    """The content of one rank's file. All its series belong to one rank of one run."""

    key: RankKey
    run_id: str
    disabled: bool
    families: tuple[SpoolFamily, ...]
