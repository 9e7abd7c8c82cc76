"""Blocks above and below the views of a run: name, status and identity; help."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rankscope.base.text import sentence_case
from rankscope.dashboards.data.source import GOING_ON, RunSummary
from rankscope.dashboards.model.line import MAX_BADGE, Badge, PageLink, Span, badge
from rankscope.dashboards.model.page import Block, Details, Group, Heading, Inline, RedrawMark, Section, Terms, Text
from rankscope.dashboards.words import wording
from rankscope.dashboards.words.inert import MAX_TEXT, sanitize

if TYPE_CHECKING:
    from rankscope.analysis.result.analysis import Kind
    from rankscope.dashboards.model.view import View


def run_head(run: RunSummary, kind: Kind | None = None) -> list[Block]:
    """Return name, state and identity of the run, with a banner if its GPUs are simulated. ``kind``: that of its verdict."""
    facts = [
        f"started {wording.utc_time(run.start_unix_ns)}",
        f"{run.ranks:,} of {wording.count(run.world_size, 'rank')} recorded"
        if run.world_size
        else wording.count(run.ranks, "rank"),
        *([wording.count(run.hosts, "host")] if run.hosts else []),
        *([wording.count(run.attempts, "attempt")] if run.attempts > 1 else []),
    ]
    if run.status == "silent":
        facts.append(f"nothing was written since {wording.utc_time(run.last_write_unix_ns)}, and no rank has said that it ended")
    trackers = [PageLink(f"{name} run on {_host(url)}", url, elsewhere=True) for name, url in run.trackers]
    path = Span(sanitize(run.path), "code", title=sanitize(run.path, MAX_TEXT), style="path")
    return [
        Group([Heading(Span(run.name), 1, "run-name"), Inline(_badges(run, kind))], "run-head"),
        Inline([Span(" · ".join(facts), style="run-fact"), path, *trackers], "run-facts"),
        *([simulated_band()] if run.simulated else []),
    ]


def _host(url: str) -> str:
    return sanitize(urlsplit(url).hostname or "", MAX_BADGE)


def _badges(run: RunSummary, kind: Kind | None) -> list[Badge]:
    """Return badges for the run's status, losses, recorder state, and simulated GPUs."""
    label, tone = wording.run_state(run.status, kind)
    named = run.status == "failed" and kind != "hang"
    badges = [badge(f"{label}: {run.losses}" if named else label, tone=tone)]
    if run.losses is not None and not named:
        badges.append(badge(sentence_case(run.losses), tone="bad"))
    if run.unrecorded is not None:
        badges.append(badge(f"Recorder off: {run.unrecorded}", tone="fair", title="It switched itself off; training went on"))
    if run.simulated:
        badges.append(badge("Simulated GPUs", tone="simulated", title="The GPU readings of this run are simulated"))
    return badges


def simulated_band() -> Block:
    """Return the banner above all content of a run with simulated GPUs."""
    sentence = " The GPU readings of this run are simulated. The times of its ranks were measured."
    return Group([Inline([Span("SIMULATED GPUS", "strong"), sentence], "")], "simulated-band", role="note")


def about(view: View) -> Block:
    """Return the view's help: content, formula, next steps."""
    text = view.help
    terms = (("What it shows", text.shows), ("How it is worked out", text.formula), ("What to do", text.do))
    return Details(f"About {view.label}", [Terms([(term, meaning, True) for term, meaning in terms])], "about")


def nothing_yet(run: RunSummary, title: str, reason: str) -> list[Block]:
    """Return the content of a view without any data. The page of a run that goes on is made again."""
    redraw_mark = [RedrawMark("nothing")] if run.status in GOING_ON else []
    return [Section(name="nothing", title=title, help=reason, blocks=[]), *redraw_mark]


def problem(title: str, reason: str, *, hint: str | None = None) -> Block:
    """Return the content of a page that cannot be shown: the reason, and a link to the list of runs."""
    return Group(
        [
            Heading(title, 1, "sentence"),
            Text(reason, "reason"),
            *([Text(hint, "help")] if hint else []),
            Inline([PageLink("See all runs", "/", style="button")], ""),
        ],
        "card verdict tone-unknown",
        "section",
        role="alert",
    )
