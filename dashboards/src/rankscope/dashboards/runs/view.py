"""Page with the list of runs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rankscope.base.errors import RankscopeError
from rankscope.base.text import sentence_case
from rankscope.dashboards.charts.causes import CAUSES
from rankscope.dashboards.data.brief import Brief
from rankscope.dashboards.data.source import GOING_ON, NotReadyError, RunSource, RunSummary, Stale
from rankscope.dashboards.model.columns import LOCAL_TIME, Column, number_column, text_column
from rankscope.dashboards.model.line import PageLink, Span, badge, named_link
from rankscope.dashboards.model.page import (
    AdviceItem,
    Block,
    Group,
    Heading,
    Inline,
    Part,
    RedrawMark,
    SearchTable,
    Section,
    Text,
)
from rankscope.dashboards.model.state import MOST_COMPARED, PageState, compare_path, run_path
from rankscope.dashboards.model.view import SitePage
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.dashboards.words import wording
from rankscope.dashboards.words.inert import MAX_TEXT, sanitize

COLUMNS: Final[list[Column]] = [
    text_column("name", "Run", width=150, renderer="Name", pinned=True, narrow=132),
    text_column(
        "kind",
        "Verdict",
        width=202,  # the longest badge
        renderer="Badge",
        tooltip="In words below the table, and on hover",
        hover_field="sentence",
        narrow=198,
    ),
    text_column("at_fault", "Rank or host", width=132, hover=True, renderer="Place"),
    text_column("cause", "Cause", width=120, hover=True),
    number_column("lost_share", "Lost %", "Share of the typical step that healing it saves", digits=0, width=72),
    number_column(
        "step_ms", "Mean step ms", "Mean wall time of the typical steps; Compare has their median, too", digits=1, width=122
    ),
    text_column("state", "State", width=134, renderer="Badge"),
    number_column("ranks", "Ranks", "World size; ranks with records where it is not known", digits=0, width=68),
    text_column("health", "Health", width=132, hover=True, fills=130),
    text_column("start", "Started", width=166, renderer="LocalTime", tooltip=LOCAL_TIME),
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
    number_column("samples", "Samples/s", "Of the whole job, in typical steps", digits=1, width=104, if_known=True),
    number_column("tokens", "Tokens/s", "Of the whole job, in typical steps", digits=0, width=116, if_known=True),
    number_column("hosts", "Hosts", "Hosts of the last attempt", digits=0, width=88),
    number_column("steps", "Steps", "Steps with evidence", digits=0, width=96),
    number_column("hours", "Duration h", "From its start to what was written last", width=112),
    text_column("folder", "Folder", width=150, hover=True),
    text_column("sentence", "In words", width=420, hover=True),
]


MOST_ASKED: Final = 24
"""Maximum number of rows in one answer."""
MOST_FOLLOWED: Final = 8
"""Maximum number of live runs per answer whose verdict is kept up to date: each needs a process beside the server."""
SOUND: Final = "Nothing missing"


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
        return {**run_row(run, None), "sentence": "No rank has started yet.", "ask": False}
    if run.status == "live" and not follow:
        return {**run_row(run, None), "sentence": "Open it to see its verdict.", "ask": False}
    try:
        return run_row(run, source.brief(run.run_id), source.stale(run.run_id))
    except NotReadyError as error:
        row = first_row(source, run)
        return row if "kind" in row else {**row, "sentence": f"{error.progress.sentence} …"}
    except RankscopeError as error:
        return {**run_row(run, None), "sentence": str(error), "kind": "No verdict", "kind_tone": "unknown", "ask": False}


def run_row(run: RunSummary, brief: Brief | None, stale: Stale | None = None) -> dict[str, Any]:
    """Return the row of a run. Unknown fields are left out to keep long lists small; ``ask``: its verdict must be requested."""
    row: dict[str, Any] = {
        "id": run.run_id,
        "name": run.name,
        "state": wording.STATUS_LABELS[run.status],
        "state_tone": wording.STATUS_TONES[run.status],
        "simulated": run.simulated or None,
        "live": run.status in GOING_ON or None,
        "folder": sanitize(Path(run.path).name),
        "start": None if run.start_unix_ns is None else wording.utc_time(run.start_unix_ns),
    }
    if run.problem is not None:
        return _without_unknown(
            {
                **row,
                "id": sanitize(run.run_id),
                "sentence": run.problem,
                "problem": True,
                "kind": "Unreadable",
                "kind_tone": "bad",
            }
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
        label, tone = wording.run_state(run.status, brief.kind)
        row |= {
            "state": label,
            "state_tone": tone,
            "kind": wording.KIND_LABELS[brief.kind],
            "kind_tone": wording.verdict_tone(brief.kind, may_be_well=run.may_be_well),
            "sentence": brief.summary,
            "at_fault": brief.at_fault,
            "cause": None if brief.cause is None else CAUSES[brief.cause].label,
            "lost_share": None if brief.slowdown is None else round(100 * (1 - 1 / brief.slowdown), 1),
            "steps": brief.steps,
            "step_ms": wording.milliseconds(brief.step_us),
            "samples": brief.samples_per_second,
            "tokens": brief.tokens_per_second,
            "lost": brief.gpu_hours_lost,
            "cost": brief.cost,
            "currency": brief.currency,
        }
    return _without_unknown(row)


def _without_unknown(row: dict[str, Any]) -> dict[str, Any]:
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
        return sentence_case("; ".join(wrong))
    return None if brief is None else SOUND


def _blocks(source: RunSource, search: str | None, _config: DashboardConfig) -> list[Block]:
    state, heading = PageState.parse(search), Heading("Runs", 1, "page-title")
    if not source.runs():
        return [heading, _EMPTY, RedrawMark("runs")]
    return [
        heading,
        SearchTable(
            name="runs",
            columns=COLUMNS,
            rows=lambda: [first_row(source, run) for run in source.runs()],
            file_name="rankscope-runs",
            pick=lambda row: replace(state, picked=row),
            q=state.q,
            several=True,
            reads=(),
            tools=[
                Part("runs-count", lambda: [Text(count_text(source.runs()), "help", live=True)], reads=()),
                Group([compare_link(())], name="runs-compare"),
            ],
        ),
        Section(
            name="run-picked",
            title="The selected run",
            help="Its verdict in words. Without a selection, the first run of the list.",
            blocks=[Part("run-picked", lambda: picked_run(source, state.picked), reads=("picked",))],
        ),
    ]


def picked_run(source: RunSource, run_id: str | None) -> list[Block]:
    """Return what the list has no room for, of the selected run or else of the first: sentence, problems, folder."""
    runs = source.runs()
    run = next((run for run in runs if run.run_id == run_id), next(iter(runs), None))
    if run is None:
        return []
    row = asked_row(source, run)
    if "kind" not in row and row.get("ask"):
        source.brief(run.run_id)  # raises NotReadyError: this block is then made again until the verdict is there
    badges = [badge(row["kind"], tone=row["kind_tone"])] if "kind" in row else []
    health = [Text(row["health"], "help")] if run.losses or run.unrecorded or row.get("health") not in (None, SOUND) else []
    return [
        Group(
            [
                Inline(
                    [
                        named_link(run.name, row["href"]) if "href" in row else run.name,
                        *badges,
                        badge(row["state"], tone=row["state_tone"]),
                        *([badge("Simulated", tone="simulated")] if row.get("simulated") else []),
                    ]
                ),
                *health,
                Text(row.get("sentence") or "", "alert-says"),
                Text(
                    [
                        f"Started {row.get('start', wording.UNKNOWN)}, in ",
                        Span(sanitize(run.path), "code", title=sanitize(run.path, MAX_TEXT)),
                    ],
                    "help",
                ),
            ],
            "alert",
            "article",
        )
    ]


def rows_of(source: RunSource, run_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of visible runs. Runs that cannot be read are left out: the next version of the list is without them."""
    rows: list[dict[str, Any]] = []
    followed = 0
    for run_id in run_ids[:MOST_ASKED]:
        try:
            run = source.summary(run_id)
        except RankscopeError:
            continue
        followed += run.status == "live"
        rows.append(asked_row(source, run, follow=followed <= MOST_FOLLOWED))
    return rows


def _version(source: RunSource, _search: str | None) -> str:
    """Return a hash that changes when rows are added, removed or changed.

    Runs that go on count by id and status only, because their rows are requested separately.
    """
    states = [(run.run_id, run.status, None if run.status in GOING_ON else run.revision) for run in source.runs()]
    return hashlib.blake2b(repr(states).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def count_text(runs: Sequence[RunSummary]) -> str:
    """Return the number of runs, and of live ones, in words."""
    live = sum(run.status == "live" for run in runs)
    return wording.count(len(runs), "run") + (f", {live:,} live" if live else "")


def compare_link(run_ids: Sequence[str]) -> Block:
    """Return the link to the comparison of the selected runs, or a hint if their number does not allow one."""
    if 2 <= len(run_ids) <= MOST_COMPARED:
        return Inline(PageLink(f"Compare {len(run_ids)} runs", compare_path(run_ids), style="button compact"), "")
    too_many = len(run_ids) > MOST_COMPARED
    hint = f"At most {MOST_COMPARED} runs can be compared" if too_many else "Mark two runs to compare"
    return Inline(hint, "help")


_EMPTY: Final = Group(
    [
        Heading("No run here yet", 2),
        Text("Record a training job; it needs no change to its code. The run appears here by itself.", "help"),
        AdviceItem("rankscope run -- torchrun --nproc-per-node 8 train.py"),
    ],
    "card empty",
    "section",
)

PAGE: Final = SitePage(path="/", title="Runs", blocks=_blocks, version=_version, rows=rows_of, wide=True)
