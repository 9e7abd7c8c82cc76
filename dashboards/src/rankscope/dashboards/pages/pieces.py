"""Small components shared by several pages: badges, copyable commands, sections with a line of help."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import dash_mantine_components as dmc  # type: ignore[import-untyped]
from dash import dcc, html
from dash.development.base_component import Component

from rankscope.dashboards.data.source import RunSummary, Status
from rankscope.dashboards.model.state import run_path
from rankscope.dashboards.pages.aria import aria
from rankscope.dashboards.words.inert import MAX_TEXT, shown
from rankscope.dashboards.words.wording import STATUS_LABELS

COMMAND = re.compile(r"(?:(?P<before>[^`]*): )?(?P<command>(?:rankscope|torchrun|nvidia-smi|dcgmi) .+)")
"""Pattern of advice that is a command, or ends with one after a colon."""
MAX_BADGE = 80
"""Maximum characters of a label. A longer text is in its title."""


def badge(text: str, *, tone: str = "plain", title: str | None = None) -> Component:
    """Return a label. Tones: plain, good, fair, bad, unknown, live, simulated; each has a sign besides its colour."""
    short = shown(text, MAX_BADGE)
    return html.Span(short, className=f"badge badge-{tone}", title=title or (None if short == text else shown(text, MAX_TEXT)))


STATUS_TONES: Final[dict[Status, str]] = {
    "starting": "live", "live": "live", "silent": "fair", "finished": "plain", "failed": "bad", "unreadable": "bad",
}  # fmt: skip


def status_badges(run: RunSummary) -> list[Component]:
    """Return badges for the run's status, losses, recorder state, and simulated GPUs."""
    label = STATUS_LABELS[run.status]
    badges = [badge(f"{label}: {run.losses}" if run.status == "failed" else label, tone=STATUS_TONES[run.status])]
    if run.losses is not None and run.status != "failed":
        badges.append(badge(run.losses, tone="bad"))
    if run.unrecorded is not None:
        badges.append(badge(f"recorder off: {run.unrecorded}", tone="fair", title="It switched itself off; training went on"))
    if run.simulated:
        badges.append(badge("Simulated GPUs", tone="simulated", title="The GPU readings of this run are made up"))
    return badges


def simulated_band() -> Component:
    """Return the banner above all content of a run with simulated GPUs."""
    return html.Div(
        [html.Strong("SIMULATED GPUS"), " The GPU readings of this run are made up. The times of its ranks were measured."],
        className="simulated-band",
        role="note",
    )


def advice(text: str) -> Component:
    """Return a next step: a command in monospace with a copy button, any other advice as text."""
    match = COMMAND.fullmatch(text)
    if match is None:
        return html.Div(text, className="advice")
    command = match["command"]
    button = dmc.CopyButton(
        "Copy",
        copiedChildren="Copied",
        value=command,
        size="compact-xs",
        variant="subtle",
        **aria(label=f"Copy the command {command}"),
    )
    line = html.Div([html.Code(unbroken(command)), button], className="advice-command")
    return html.Div([f"{match['before']}:", line] if match["before"] else line, className="advice")


def unbroken(text: str) -> list[Component | str]:
    """Return ``text`` with each command-line option in one piece, so that no line breaks after its dashes."""
    parts = re.split(r"(?<=\s)(--?[a-z][a-z-]*)", text)
    return [html.Span(part, className="option") if at % 2 else part for at, part in enumerate(parts)]


def run_link(run_id: str, name: str) -> Component:
    """Return a link to a run. A long name is cut off, to leave room for a table's other columns."""
    short = shown(name, MAX_BADGE)
    link: Component = dcc.Link(short, href=run_path(run_id), title=None if short == name else shown(name, MAX_TEXT))
    return link


def first_of(items: Sequence[Component | str], most: int) -> list[Component | str]:
    """Return the first ``most`` items as ``a, b and 3 more``."""
    parts: list[Component | str] = []
    for index, item in enumerate(items[:most]):
        parts += [", " if index else "", item]
    return [*parts, *([f" and {len(items) - most:,} more"] if len(items) > most else [])]


def table(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[Any]]) -> Component:
    """Return a small table. ``columns``: head and CSS class, which is ``number``, ``names`` (arbitrary text) or ``""``."""
    head = html.Tr([html.Th(name, scope="col", className=kind) for name, kind in columns])
    body = [html.Tr([html.Td(cell, className=kind) for cell, (_, kind) in zip(row, columns, strict=True)]) for row in rows]
    return html.Div(html.Table([html.Thead(head), html.Tbody(body)], className="ledger"), className="scrolls")


def legend(entries: list[tuple[str, str]]) -> Component:
    """Return a legend of (key, label) entries. assets/style.css has the swatches by key."""
    return html.Ul(
        [html.Li([html.Span(className=f"swatch swatch-{key}", **aria(hidden="true")), label]) for key, label in entries],
        className="legend",
    )


def section(
    identifier: str, title: str, help_text: str, children: list[Component], *, tools: list[Component] | None = None
) -> Component:
    """Return a titled section with a line of help (content and use), and tools at its right."""
    return html.Section(
        [
            html.Div(
                [
                    html.Div([html.H2(title, id=f"{identifier}-title"), html.P(unbroken(help_text), className="help")]),
                    html.Div(tools or [], className="tools"),
                ],
                className="section-head",
            ),
            *children,
        ],
        className="card",
        id=f"{identifier}-section",
        **aria(labelledby=f"{identifier}-title"),
    )
