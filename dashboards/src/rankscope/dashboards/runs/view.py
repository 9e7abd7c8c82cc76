"""Page with the list of runs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from rankscope.dashboards.data.source import RunSource, RunSummary
from rankscope.dashboards.model.list_state import MOST_COMPARED, ListState
from rankscope.dashboards.model.page import Advice, Again, Block, Callbacks, Group, Heading, Link, Listing, Pieces, Text
from rankscope.dashboards.model.state import compare_path
from rankscope.dashboards.model.view import SitePage
from rankscope.dashboards.runs.rows import COLUMNS, first_row
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.dashboards.words import wording

LOOK_MS: Final = 1000
"""Interval in ms at which the browser looks for visible rows with a missing or changing verdict. It requests only these."""


def _blocks(source: RunSource, search: str | None, config: DashboardConfig) -> list[Block]:
    runs = source.runs()
    heading, poll_ms = Heading("Runs", 1, "page-title"), int(config.poll_interval_s * 1000)
    if not runs:
        return [heading, _EMPTY, Again("runs", poll_ms)]
    listing = Listing(
        name="runs",
        columns=COLUMNS,
        rows=list_rows(source, runs),
        count=counted(runs),
        search=search,
        height="max(320px, calc(100dvh - 220px))",
        selection={
            "rowSelection": {
                "mode": "multiRow",
                "headerCheckbox": False,
                "isRowSelectable": {"function": "params.data != null && !params.data.problem"},
            },
            "selectionColumnDef": {"pinned": "left", "width": 46},
        },
        tools=[Group([compare_link(ListState.parse(search).picked)], name="runs-compare")],
    )
    return [
        heading,
        listing,
        Callbacks(
            values={"run-list-revision": list_revision(runs), "runs-asked": None, "runs-answer": None},
            timers={"runs-look": LOOK_MS, "run-list-poll": poll_ms},
        ),
    ]


def list_revision(runs: Sequence[RunSummary]) -> str:
    """Return a hash that changes when rows are added, removed or changed.

    Runs that go on count by id and status only, because their rows are requested separately.
    """
    told = [(run.run_id, run.status, None if run.status in wording.GOING_ON else run.revision) for run in runs]
    return hashlib.blake2b(repr(told).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def list_rows(source: RunSource, runs: Sequence[RunSummary]) -> list[dict[str, Any]]:
    """Return a row per run, in the given order."""
    return [first_row(source, run) for run in runs]


def counted(runs: Sequence[RunSummary]) -> str:
    """Return the number of runs, and of live ones, in words."""
    live = sum(run.status == "live" for run in runs)
    return wording.count(len(runs), "run") + (f", {live:,} live" if live else "")


def compare_link(run_ids: Sequence[str]) -> Block:
    """Return the link to the comparison of the selected runs, or a hint if their number does not allow one."""
    if 2 <= len(run_ids) <= MOST_COMPARED:
        return Pieces(Link(f"Compare {len(run_ids)} runs", compare_path(run_ids), style="button compact"), "")
    too_many = len(run_ids) > MOST_COMPARED
    says = f"At most {MOST_COMPARED} runs can be compared" if too_many else "Select two runs to compare"
    return Pieces(says, "help")


_EMPTY: Final = Group(
    [
        Heading("No run here yet", 2),
        Text("Record a training job; it needs no change to its code. The run appears here by itself.", "help"),
        Advice("rankscope run -- torchrun --nproc-per-node 8 train.py"),
    ],
    "card empty",
    "section",
)

PAGE: Final = SitePage(path="/", title="Runs", blocks=_blocks, wide=True)
