"""Records of a text file of the spool, after it was read and checked."""

from __future__ import annotations

from typing import NamedTuple, Self

import msgspec

from rankscope.base.exposition import Kind, Labels
from rankscope.exporter.source import Series


class RejectedError(Exception):
    """The file is not relayed. ``reason`` is one of a few fixed words: no content of the file may reach a label or the log."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class SpoolFamily(msgspec.Struct, frozen=True):
    """One metric: its name on the page (with ``_total`` for counters), type, help text and series.

    A series has its full name, and its labels sorted by name. The series of a histogram are its buckets in ascending order of
    their bounds, then sum and count in the order of the file.
    """

    name: str
    type: Kind
    help: str
    series: tuple[Series, ...]


class RankKey(NamedTuple):
    """Identity of a rank's series, unique on a node."""

    run: str
    rank: str
    slot: str

    @classmethod
    def of(cls, labels: Labels) -> Self:
        """Return the rank that the labels name; a missing label is empty."""
        by_name = dict(labels)
        return cls(*(by_name.get(name, "") for name in cls._fields))


class SpoolContent(msgspec.Struct, frozen=True):
    """The content of one rank's file. All its series belong to one rank of one run."""

    key: RankKey
    run_id: str
    disabled: bool
    families: tuple[SpoolFamily, ...]
