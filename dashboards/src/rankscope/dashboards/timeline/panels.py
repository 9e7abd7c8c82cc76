"""Panels to export a window and to request a new one."""

from __future__ import annotations

import shlex
from typing import Final

from rankscope.dashboards.data.source import RunSummary
from rankscope.dashboards.model.page import Advice, Block, Request, Section
from rankscope.dashboards.model.state import run_path
from rankscope.dashboards.timeline.windows import Window
from rankscope.dashboards.words.wording import GOING_ON
from rankscope.runs.control import MAX_STEPS

STEPS: Final = 3


def export_panel(run: RunSummary, window: Window | None) -> Block:
    """Return the panel that saves the shown window as a file for Perfetto."""
    path = shlex.quote(run.path)
    steps = "" if window is None else f" --steps {window.first}:{window.past}"
    return Section(
        name="perfetto",
        title="Open in Perfetto",
        help="Every event of the window on the common clock, with arrows to those who waited and the raw traces that were kept. "
        "Save it, then open ui.perfetto.dev and choose Open trace file: the browser reads it, nothing is sent anywhere.",
        blocks=[
            Request("Save the window", ("export", f"{run_path(run.run_id)}/perfetto")),
            Advice(f"The same, with the verdict on top: rankscope export {path} --perfetto window.json.gz{steps}"),
        ],
    )


def capture_panel(run: RunSummary) -> Block:
    """Return the panel that requests a capture of the next steps; for a run that ended, only the command."""
    goes_on = run.status in GOING_ON
    ask = Request(
        "Request a capture", ("capture", f"/api{run_path(run.run_id)}/capture"), ("capture-steps", "Steps", STEPS, MAX_STEPS)
    )
    return Section(
        name="capture",
        title="Request a capture",
        help="All ranks profile the same of their next steps, a few seconds ahead. "
        "The new window is in the list of windows once it is there."
        if goes_on
        else "This run has ended: no rank is there to profile anything. Of one that goes on:",
        blocks=[
            *([ask] if goes_on else []),
            Advice(f"On the command line: rankscope capture {shlex.quote(run.path)} --steps {STEPS}"),
        ],
    )
