"""Reports on dumps that are not files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.flight_dumps import START_NS

from rankscope.analysis.hang.diagnosis import diagnose
from rankscope.analysis.hang.files import LoadedDumps
from rankscope.analysis.hang.hang_result import HangReport
from rankscope.analysis.hang.records import parse


def report_of(
    documents: Mapping[int, dict[str, Any]], *, waited_s: Mapping[int, float] | None = None, world_size: int | None = None
) -> HangReport:
    """Return the report on one document per rank. ``waited_s``: seconds from the start of the job to the dump, by rank."""
    dumps = LoadedDumps("dumps", world_size=world_size)
    for rank, document in documents.items():
        dump = parse(document)
        assert dump is not None
        dumps.ranks[rank] = [dump]
    dumps.taken_ns = {rank: START_NS + int(seconds * 1e9) for rank, seconds in (waited_s or {}).items()}
    return diagnose(dumps)
