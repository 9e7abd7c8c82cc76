"""Common look of all figures (fonts, background, margins, mode bar), and the note shown instead of a figure without data."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import cache
from textwrap import wrap
from typing import Any, Final

import plotly.graph_objects as go  # type: ignore[import-untyped]

from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.model.drawn import NO_DATA, DrawnFigure
from rankscope.dashboards.words.inert import MAX_TEXT, plotly_text

_NOTE_CHARACTERS: Final = 38
"""Maximum characters per line of a note, which fit a narrow screen."""

_NOTE_LINE, _NOTE_PADDING = 20, 24
"""Pixels of a line of a note, and above and below its lines."""

_EVERY_STEP_UP_TO: Final = 12
"""Up to this many steps an axis needs a tick distance of 1, for there is no step 0.5; with more, Plotly labels whole ones."""

_AXIS_PX: Final = 48
"""Pixels of the labels and the title below an axis."""
_LETTER_PX: Final = 7
_TAG: Final = re.compile(r"<[^>]*>")

FONT: Final = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'

GRAPH_CONFIG: Final[dict[str, Any]] = {
    "showSendToCloud": False,
    "displaylogo": False,
    "responsive": True,
    "scrollZoom": False,
    "displayModeBar": "hover",
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
    "toImageButtonOptions": {"format": "svg", "filename": "rankscope"},
}
"""Configuration of every graph. Plotly's "send to cloud" button is off: it would upload the data."""


@cache
def _look(colors: Palette) -> go.layout.Template:
    """Return the look that all figures of a colour scheme share. To set each property of each figure takes eight times longer."""
    axis = {
        "gridcolor": colors.grid,
        "zerolinecolor": colors.grid,
        "linecolor": colors.grid,
        "showline": True,
        "zeroline": True,
        "tickfont": {"color": colors.muted, "size": 12},
        "title": {"font": {"color": colors.muted, "size": 12}},
        "automargin": True,
        "separatethousands": True,
    }
    font = {"family": FONT, "color": colors.text, "size": 13}
    return go.layout.Template(
        layout={
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": font,
            "hoverlabel": {"bgcolor": colors.surface, "bordercolor": colors.muted, "font": font},
            "xaxis": axis,
            "yaxis": axis,
        }
    )


def framed(figure: go.Figure, colors: Palette, *, height: int) -> go.Figure:
    """Apply the common look to ``figure`` and return it. ``height`` is in pixels; the width is the container's."""
    figure.update_layout(
        template=_look(colors),
        height=height,
        autosize=True,
        margin={"l": 8, "r": 8, "t": 8, "b": 8},
        uirevision="keep",  # keeps zoom and hidden traces when a live run redraws
    )
    return figure


def fix_margins(figure: go.Figure, *, left_px: int) -> None:
    """Set the margins of a figure whose labels have a known width. Plotly draws a figure twice to measure the labels itself."""
    figure.update_layout(margin_l=left_px, margin_b=_AXIS_PX)
    figure.update_xaxes(automargin=False, tickangle=0)
    figure.update_yaxes(automargin=False)


def label_width(labels: Sequence[str]) -> int:
    """Return an upper estimate of the width in pixels of tick labels with line breaks and emphasis."""
    lines = [_TAG.sub("", line) for label in labels for line in label.split("<br>")]
    return _LETTER_PX * max(map(len, lines), default=0)


def rank_label(rank: int, blamed: Collection[int], picked: int | None = None) -> str:
    """Return the axis label of a rank."""
    return marked_label(f"rank {rank}", blamed=rank in blamed, picked=rank == picked)


def marked_label(text: str, *, blamed: bool, picked: bool) -> str:
    """Return an axis label. What is blamed has a flag, what is picked a pointer, so that neither depends on colour."""
    sign = "⚑ " if blamed else "▸ " if picked else ""
    return f"<b>{sign}{text}</b>" if sign else text


def rows_axis(figure: go.Figure, labels: Sequence[str], **others: Any) -> None:
    """Set a y axis of named rows, the first at the top; row ``n`` is at ``y = n``. ``others``: further axis settings."""
    figure.update_yaxes(
        tickmode="array",
        tickvals=list(range(len(labels))),
        ticktext=labels,
        range=[len(labels) - 0.5, -0.5],
        **{"showgrid": False, "zeroline": False, **others},
    )


def steps_axis(figure: go.Figure, steps: int, **others: Any) -> None:
    """Set an x axis of that many steps. ``others``: further axis settings."""
    every = {"dtick": 1} if steps <= _EVERY_STEP_UP_TO else {}
    figure.update_xaxes(title_text="step", **every, **others)


def legend_above(figure: go.Figure, **others: Any) -> None:
    """Place a horizontal legend above the figure, where it takes none of its width. ``others``: further legend settings."""
    figure.update_layout(showlegend=True, legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", **others})


def outlined_font(colors: Palette) -> dict[str, str]:
    """Return the font of a text on a hatched bar: an outline of the surface's colour covers the hatching around the letters."""
    edges = [f"{x}px {y}px 1px {colors.surface}" for x in (-2, -1, 0, 1, 2) for y in (-1, 0, 1)]
    return {"color": colors.text, "shadow": ", ".join(edges)}


def note(text: str, colors: Palette, *, height: int | None = None) -> go.Figure:
    """Return a figure without data whose ``text`` explains what is missing and how to get it.

    ``<br>`` breaks lines; long lines are wrapped, since a figure would cut them off. All other markup is escaped: the text may
    be an error message that contains a name.
    """
    lines = [short for line in text.split("<br>") for short in wrap(line, _NOTE_CHARACTERS, break_on_hyphens=False)]
    figure = framed(go.Figure(), colors, height=height or _NOTE_PADDING + _NOTE_LINE * len(lines))
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    figure.add_annotation(
        text="<br>".join(plotly_text(line, MAX_TEXT) for line in lines),
        x=0.5,
        y=0.5,
        xref="paper",
        yref="paper",
        showarrow=False,
        font={"color": colors.muted, "size": 14},
        align="center",
    )
    return figure


def drawn_note(text: str, colors: Palette) -> DrawnFigure:
    """Return a note in the place of a figure; see ``note``."""
    return DrawnFigure(note(text, colors), NO_DATA, text.replace("<br>", " "))
