"""Title of a figure of GPUs: its subject, and the mark SIMULATED for simulated readings."""

from __future__ import annotations

from html import escape
from typing import Final

import plotly.graph_objects as go  # type: ignore[import-untyped]

from rankscope.dashboards.figures.palette import Palette

_ROOM_PX: Final = 24


def finish(
    figure: go.Figure, colors: Palette, *, title: str = "", steps: tuple[int, int] | None = None, simulated: bool = False
) -> None:
    """Put ``title`` above ``figure``, with SIMULATED for simulated readings. Its zoom is kept only for the same ``steps``."""
    figure.update_layout(uirevision=str(steps))
    words = [escape(title), *(["<b>SIMULATED</b>"] if simulated else [])]
    text = " · ".join(word for word in words if word)
    if text:
        figure.update_layout(
            title={
                "text": text,
                "font": {"size": 12, "color": colors.text},
                "x": 0,
                "xanchor": "left",
                "y": 1,
                "yref": "container",
                "yanchor": "top",
                "pad": {"l": 8, "t": 4},
            },
            margin={"t": 8 + _ROOM_PX},
            height=figure.layout.height + _ROOM_PX,
        )
