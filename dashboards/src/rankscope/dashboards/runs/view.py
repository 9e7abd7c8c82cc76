"""Page with the list of runs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.brief import Brief
from rankscope.dashboards.data.source import NotReadyError, RunSource, RunSummary, Stale
from rankscope.dashboards.model.columns import LOCAL_TIME, Column, number_column, text_column
from rankscope.dashboards.model.list_state import MOST_COMPARED, ListState
from rankscope.dashboards.model.page import Advice, Again, Block, Callbacks, Group, Heading, Link, Listing, Pieces, Text
from rankscope.dashboards.model.state import compare_path, run_path
from rankscope.dashboards.model.view import SitePage
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.dashboards.words import wording
from rankscope.dashboards.words.inert import sanitize

COLUMNS: Final[list[Column]] = [
    text_column("name", "Run", width=190, renderer="RunName", pinned=True),
    text_column("folder", "Folder", width=130, hover=True),
    text_column("start", "Started", width=166, renderer="LocalTime", tooltip=LOCAL_TIME),
    text_column("state", "State", width=204, renderer="RunState", hover=True),
    text_column("verdict", "Verdict", width=420, renderer="RunVerdict", hover=True, fills=420),
    number_column(
        "lost",
        "GPU-h lost",
        "GPU time lost to what the verdict blames: in typical steps, or, where it is about rare steps, in these",
        digits=3,
        width=106,
        if_known=True,
    ),
    number_column(
        "cost",
        "Cost",
        "Of the GPU time lost, at the price recorded with the run",
        width=110,
        unit_field="currency",
        if_known=True,
    ),
    number_column("step_ms", "Step ms", "Mean wall time of a typical step", width=94),
    number_column("samples", "Samples/s", "Of the whole job, in typical steps", digits=1, width=104, if_known=True),
    text_column("health", "Health", width=170, hover=True),
    number_column("ranks", "Ranks", "World size; ranks with records where it is not known", digits=0, width=92),
    number_column("hosts", "Hosts", "Hosts of the last attempt", digits=0, width=88),
    number_column("steps", "Steps", "Steps with evidence", digits=0, width=96),
    number_column("tokens", "Tokens/s", "Of the whole job, in typical steps", digits=0, width=116, if_known=True),
    number_column("hours", "Duration h", "From its start to what was written last", width=112),
]


def first_row(source: RunSource, run: RunSummary) -> dict[str, Any]:
    """Return the row of a run from cached results, else from the verdict in its directory; no analysis is started."""
    try:
        brief = source.known_brief(run)
    except RankscopeError:
        brief = None  # a damaged cache entry counts as missing
    if brief is not None:
        return run_row(run, brief)
    stored = source.stored_brief(run)
    if stored is None:
        return run_row(run, None)
    row = run_row(run, stored.brief)
    return row if stored.is_current else {**row, "ask": True}


def asked_row(source: RunSource, run: RunSummary, *, follow: bool = True) -> dict[str, Any]:
    """Return the row of a visible run with its verdict, progress or error. Without ``follow``, a live run is not analysed."""
    if run.problem is not None:
        return run_row(run, None)
    if run.status == "starting":
        return {**run_row(run, None), "verdict": "No rank has started yet.", "ask": False}
    if run.status == "live" and not follow:
        return {**run_row(run, None), "verdict": "Open it to see its verdict.", "ask": False}
    try:
        return run_row(run, source.brief(run.run_id), source.stale(run.run_id))
    except NotReadyError as error:
        row = first_row(source, run)
        return row if "kind" in row else {**row, "verdict": f"{error.progress.sentence} …"}
    except RankscopeError as error:
        return {**run_row(run, None), "verdict": str(error), "kind": "No verdict", "tone": "unknown", "ask": False}


def run_row(run: RunSummary, brief: Brief | None, stale: Stale | None = None) -> dict[str, Any]:
    """Return the row of a run. Unknown fields are left out to keep long lists small; ``ask``: its verdict must be requested."""
    row: dict[str, Any] = {
        "id": run.run_id,
        "name": run.name,
        "state": wording.STATUS_LABELS[run.status],
        "state_tone": wording.STATUS_TONES[run.status],
        "simulated": run.simulated or None,
        "live": run.status in wording.GOING_ON or None,
        "folder": sanitize(Path(run.path).name),
        "start": None if run.start_unix_ns is None else wording.moment(run.start_unix_ns),
    }
    if run.problem is not None:
        return _known(
            {**row, "id": sanitize(run.run_id), "verdict": run.problem, "problem": True, "kind": "Unreadable", "tone": "bad"}
        )
    row |= {
        "href": run_path(run.run_id),
        "ranks": run.world_size or run.ranks or None,
        "hosts": run.hosts or None,
        "hours": _hours(run),
        "health": _health(run, brief, stale),
        "ask": True if brief is None or (stale is not None and stale.is_pending) else None,
    }
    if brief is not None:
        label, tone = wording.state(run.status, brief.kind)
        row |= {
            "state": label,
            "state_tone": tone,
            "kind": wording.KIND_LABELS[brief.kind],
            "tone": wording.verdict_tone(brief.kind, may_be_well=run.may_be_well),
            "verdict": brief.summary,
            "steps": brief.steps,
            "step_ms": wording.milliseconds(brief.step_us),
            "samples": brief.samples_per_second,
            "tokens": brief.tokens_per_second,
            "lost": brief.gpu_hours_lost,
            "cost": brief.cost,
            "currency": brief.currency,
        }
    return _known(row)


def _known(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def _hours(run: RunSummary) -> float | None:
    if run.start_unix_ns is None or run.last_write_unix_ns is None or run.last_write_unix_ns < run.start_unix_ns:
        return None
    return round((run.last_write_unix_ns - run.start_unix_ns) / 3.6e12, 4)


def _health(run: RunSummary, brief: Brief | None, stale: Stale | None) -> str | None:
    """Return the run's problems, the worst first; ``None`` while they are unknown."""
    wrong = [run.losses] if run.losses else []
    if run.unrecorded:
        wrong.append(f"recorder off: {run.unrecorded}")
    if stale is not None:
        wrong.append(wording.not_renewed(stale))
    if brief is not None and brief.warning is not None:
        more = f" (and {brief.warnings - 1} more)" if brief.warnings > 1 else ""
        wrong.append(f"{brief.warning}{more}")
    if wrong:
        return "; ".join(wrong)
    return None if brief is None else "nothing missing"


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
        path=PAGE.path,
        search=search,
        height="max(320px, calc(100dvh - 220px))",
        selection={
            "rowSelection": {
                "mode": "multiRow",
                "headerCheckbox": False,
                "isRowSelectable": {"function": "params.data != null && !params.data.problem"},
            },
            "selectionColumnDef": {"pinned": "left", "width": 46, "headerName": "✓", "headerTooltip": "Select runs to compare"},
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
    states = [(run.run_id, run.status, None if run.status in wording.GOING_ON else run.revision) for run in runs]
    return hashlib.blake2b(repr(states).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


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
