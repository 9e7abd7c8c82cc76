"""Table of what each rank or host cost the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rankscope.base.text import sentence_case
from rankscope.dashboards.charts.causes import CAUSES
from rankscope.dashboards.data.hosts import WORST_RANK
from rankscope.dashboards.delays.data import CHARGED, RankDelay
from rankscope.dashboards.model.columns import Column, number_column, text_column
from rankscope.dashboards.words.wording import seconds

COLUMNS: Final[list[Column]] = [
    number_column("rank", "Rank", "Global rank", digits=0, width=92, pinned=True),
    text_column("host", "Host"),
    number_column(
        "steps_s", "All steps s", "Wait imposed on others over all steps that were judged, from step records", width=130
    ),
    number_column("last_in", "Last in", "Steps in which it came last", digits=0, width=96),
    *(
        number_column(
            f"{key}_s",
            f"{sentence_case(CAUSES[key].label)} s",
            f"Part of the imposed wait over all steps: {CAUSES[key].label}",
            width=170,
            if_known=True,
        )
        for key in CHARGED
    ),
    number_column("direct_s", "Direct s", "Profiled steps: wait imposed in groups that the rank is in", width=116),
    number_column(
        "knock_on_s",
        "Knock-on s",
        "Profiled steps: wait in other groups, whose last rank had waited for this one before",
        width=130,
    ),
    number_column("exposed_s", "Exposed s", "Profiled steps: the part of both that no compute hid", width=124),
]

HOST_COLUMNS: Final[list[Column]] = [
    text_column("host", "Host", width=180, pinned=True, hover=True),
    number_column("rank", "Worst rank", WORST_RANK, digits=0, width=116),
    *(column for column in COLUMNS if column.field not in ("rank", "host")),
]


def cost_table(delays: Sequence[RankDelay], hosts: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return a row per rank, or per host under its worst rank; times in seconds."""
    return [
        {
            "id": str(delay.rank),
            "rank": delay.rank,
            "host": hosts.get(delay.rank),
            "steps_s": seconds(delay.steps_us),
            "last_in": delay.last_in,
            **{f"{key}_s": seconds(delay.causes_us.get(key)) for key in CHARGED},
            "direct_s": seconds(delay.direct_us),
            "knock_on_s": seconds(delay.knock_on_us),
            "exposed_s": seconds(delay.exposed_us),
        }
        for delay in delays
    ]
