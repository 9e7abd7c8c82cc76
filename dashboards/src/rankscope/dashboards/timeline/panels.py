"""Panels to export a window and to request a new one."""

from __future__ import annotations

import shlex
from typing import Any, Final, cast

from dash import dcc, html
from dash.development.base_component import Component

from rankscope.dashboards.data.source import RunSummary
from rankscope.dashboards.model.state import run_path
from rankscope.dashboards.pages.aria import aria
from rankscope.dashboards.pages.pieces import advice, section
from rankscope.dashboards.timeline.windows import Window
from rankscope.dashboards.words.wording import GOING_ON
from rankscope.runs.control import MAX_STEPS

STEPS: Final = 3


def export_panel(run: RunSummary, window: Window | None) -> Component:
    """Return the panel that saves the shown window as a file for Perfetto. assets/capture.js handles its button."""
    path = shlex.quote(run.path)
    steps = "" if window is None else f" --steps {window.first}:{window.past}"
    return section(
        "perfetto",
        "Open in Perfetto",
        "Every event of the window on the common clock, with arrows to those who waited and the raw traces that were kept. "
        "Save it, then open ui.perfetto.dev and choose Open trace file: the browser reads it, nothing is sent anywhere.",
        [
            html.Div(
                [
                    _button("Save the window", {"data-export": f"{run_path(run.run_id)}/perfetto"}),
                    html.Span(className="told", role="status", **aria(live="polite")),
                ],
                className="asking",
            ),
            advice(f"The same, with the verdict on top: rankscope export {path} --perfetto window.json.gz{steps}"),
        ],
    )


def capture_panel(run: RunSummary) -> Component:
    """Return the panel that requests a capture of the next steps; for a run that ended, only the command."""
    goes_on = run.status in GOING_ON
    asking = [
        html.Label(
            [
                "Steps ",
                dcc.Input(id="capture-steps", type="number", min=1, max=MAX_STEPS, step=1, value=STEPS, className="number"),
            ],
            htmlFor="capture-steps",
        ),
        _button("Request a capture", {"data-capture": f"/api{run_path(run.run_id)}/capture"}),
        html.Span(className="told", role="status", **aria(live="polite")),
    ]
    return section(
        "capture",
        "Request a capture",
        "All ranks profile the same of their next steps, a few seconds ahead. "
        "The new window is in the list of windows once it is there."
        if goes_on
        else "This run has ended: no rank is there to profile anything. Of one that goes on:",
        [
            *([html.Div(asking, className="asking")] if goes_on else []),
            advice(f"On the command line: rankscope capture {shlex.quote(run.path)} --steps {STEPS}"),
        ],
    )


def _button(label: str, data: dict[str, str]) -> Component:
    return html.Button(label, className="button", type="button", **cast("Any", data))
