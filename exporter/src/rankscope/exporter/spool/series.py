"""What is in a rank's text file, once it has been read and checked."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

Labels = tuple[tuple[str, str], ...]
Kind = Literal["gauge", "counter", "histogram"]


class RejectedError(Exception):
    """The file is not relayed. ``reason`` is one of a few fixed words: content of the file never reaches a label or the log."""

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

    Those of a histogram are its buckets, with the least bound first, and then sum and count, as they stand in the file.
    """

    name: str
    type: Kind
    help: str
    series: tuple[SpoolSeries, ...]


class RankKey(NamedTuple):
    """Whose series they are: no two ranks of a node have the same."""

    run: str
    rank: str
    slot: str


class SpoolFile(msgspec.Struct, frozen=True):
    """What one rank published, and who that is: all series of a file belong to one rank of one run."""

    key: RankKey
    run_id: str
    disabled: bool
    families: tuple[SpoolFamily, ...]


class InspectorFile(msgspec.Struct, frozen=True):
    """Series of one GPU, from a file of NCCL Inspector; ``uuid`` is the GPU's, from the name of the file."""

    uuid: str
    families: tuple[SpoolFamily, ...]
