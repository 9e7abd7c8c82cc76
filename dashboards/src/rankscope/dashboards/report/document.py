"""Report of a run: its head and the views of its pages, in one file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from typing import Any, Final

from dash.development.base_component import Component

from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.pages.run_page import LIVE, run_head
from rankscope.dashboards.report.contents import Contents, anchor_of
from rankscope.dashboards.report.offline_page import offline_page
from rankscope.dashboards.report.static_html import Props, StaticHtml, parts_of
from rankscope.dashboards.views.registry import VIEWS
from rankscope.dashboards.words import wording

_SCHEMES: Final = (("light", "Light"), ("auto", "System"), ("dark", "Dark"))
_WORDS: Final = {"rank": "rank", "metric": "metric", "steps": "steps"}
"""Selectable fields for which the command has an option, to their name in the report."""


@dataclass(frozen=True, slots=True)
class Report:
    """Report as a file, and its faults (unexpected drawing errors), one line each."""

    file: bytes
    faults: list[str]


def report(run: RunData, state: PageState, *, made_unix_ns: int, tell: Callable[[str], None]) -> Report:
    """Return a report of all views of ``run`` with ``state`` selected. The same run and time produce the same bytes.

    ``tell``: progress callback. Raises ``RankscopeError`` if the run cannot be analysed.
    """
    analysis = run.analysis
    contents = Contents(run, state, tell)
    views = contents.html()
    name, made_by = run.summary.name, f"rankscope {version('rankscope')}"
    coverage = f"Coverage {wording.percent(analysis.source.coverage)}: ranks × steps with evidence over those expected."
    selected = "; ".join(f"{word} {text}" for field, word in _WORDS.items() if (text := _chosen(state, field)) is not None)
    facts = [
        f"Made {wording.moment(made_unix_ns)} by {made_by} from the run's records. Nothing here is loaded from elsewhere.",
        _as_of(run),
        coverage,
        *([f"Selected: {selected}."] if selected else []),
        "To choose other ranks, steps and metrics, and to follow links into them: rankscope dashboard.",
    ]
    body = _BODY.format(
        schemes="".join(
            f'<button type="button" data-scheme="{scheme}" aria-pressed="{str(scheme == "auto").lower()}">{label}</button>'
            for scheme, label in _SCHEMES
        ),
        head=StaticHtml().html(run_head(run)),
        facts="".join(f"<span>{escape(fact)}</span>" for fact in facts),
        contents="".join(f'<li><a href="#{anchor_of(view)}">{escape(view.label)}</a></li>' for view in VIEWS),
        views=views,
    )
    tell("packing")
    file = f"rankscope-{run.summary.run_id}"
    page = offline_page(title=f"{name} · rankscope", file=file, generator=made_by, body=body, figures=contents.figures)
    return Report(page, contents.faults)


_BODY: Final = """<a class="skip" href="#page">Skip to the report</a>
<header class="site-head"><span class="brand">rankscope report</span>
<div class="schemes" role="group" aria-label="Colour scheme">{schemes}</div></header>
<main class="stack" id="page" tabindex="-1">
<header class="run-page-head">{head}<div class="report-facts">{facts}</div></header>
<noscript><p class="report-note">Without scripts the figures are not drawn; what they say stands in their places.</p></noscript>
<p class="report-note" id="not-drawn" role="alert" hidden></p>
<nav class="contents" aria-label="Contents"><ol>{contents}</ol></nav>
{views}</main>"""


def _chosen(state: PageState, field: str) -> str | None:
    """Return a field as in the address; ``None`` if it has its default."""
    return None if getattr(state, field) == getattr(PageState(), field) else state.text(field)


def _as_of(run: RunData) -> str:
    last = wording.moment(run.summary.last_write_unix_ns)
    if run.summary.status in LIVE - {"failed"}:
        return f"The run had not ended: everything is as of {last}, when it was last written to."
    return f"The run was last written to {last}."


def metrics_offered(run: RunData) -> list[str]:
    """Return the metrics that the pages offer; empty if there is no such choice."""
    for view in VIEWS:
        for props in _all_props(view.layout(run, PageState())):
            if props.get("id") == {"type": "control", "name": "metric"}:
                return [option["value"] for option in props["data"]]
    return []


def _all_props(node: Any) -> Iterator[Props]:
    if isinstance(node, Sequence) and not isinstance(node, str):
        for child in node:
            yield from _all_props(child)
    elif isinstance(node, Component):
        _, _, props = parts_of(node)
        yield props
        yield from _all_props(props.get("children"))
