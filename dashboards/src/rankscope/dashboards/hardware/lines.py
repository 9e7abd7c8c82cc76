"""One GPU over time, above the own time of its rank: a clock drop and the longer step it causes line up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
from numpy.typing import NDArray

from rankscope.dashboards.charts.frame import framed
from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.data.events import KINDS, THROTTLES, HardwareEvent
from rankscope.dashboards.data.hardware import HardwareSeries
from rankscope.dashboards.data.metrics import METRICS
from rankscope.dashboards.hardware.data import TimeColumns
from rankscope.dashboards.hardware.figures import time_axis
from rankscope.dashboards.words.inert import plotly_text
from rankscope.dashboards.words.units import shown_unit

GAUGES: Final = ("temperature_celsius", "power_watts", "sm_clock_hertz", "utilization_ratio")
NAMES: Final = {
    "temperature_celsius": "Temperature",
    "power_watts": "Power",
    "sm_clock_hertz": "SM clock",
    "utilization_ratio": "GPU use",
}
KIND_NAMES: Final = {
    "xid": "Xid error",
    "ecc": "ECC error",
    "nvlink": "NVLink",
    "pcie_link": "PCIe link",
    "hw_thermal": "heat (hardware)",
    "sw_thermal": "heat (driver)",
    "hw_power_brake": "power brake",
    "hw_slowdown": "hardware slowdown",
    "sw_power_cap": "power limit",
    "sync_boost": "sync boost",
    "applications_clocks": "set clocks",
    "display_clocks": "display clocks",
    "clock_drop": "clock dropped",
}
_SHADED: Final = 60
"""Maximum number of events shaded through all plots, the longest first."""
_ROW_PX: Final = 84
_STRIP_PX: Final = 20


@dataclass(frozen=True, slots=True)
class OwnTime:
    """Own time per column of steps, for the rank on the GPU."""

    rank: int
    steps: NDArray[np.int64]
    """[columns], the first step of each column."""
    own_us: NDArray[np.float32]
    """[columns], the worst of each column; NaN is unknown."""


def gpu_lines(
    series: HardwareSeries, events: Sequence[HardwareEvent], own: OwnTime | None, columns: TimeColumns, colors: Palette
) -> go.Figure:
    """Draw small multiples with a shared x axis: events of the GPU, its gauges, and the own time of its rank.

    ``events`` are those of this GPU. A gauge without readings has the text "not known" instead of a line.
    """
    kinds = {kind: of_kind for kind in KINDS if (of_kind := [event for event in events if event.kind == kind])}
    strip = _STRIP_PX * len(kinds) + 16 if kinds else 0
    plot_px = strip + _ROW_PX * (len(GAUGES) + 1)
    top = 1 - strip / plot_px
    each = top / (len(GAUGES) + 1)
    lines_figure = _LinesFigure(columns, colors)
    if kinds:
        lines_figure.add_events(kinds, top)
    x = columns.along(series.unix_ns)
    for number, gauge in enumerate(GAUGES):
        values = series.values.get(gauge, np.full(len(x), np.nan))
        size, unit = shown_unit(METRICS[gauge].unit, _largest(values))
        line = _Line(NAMES[gauge], unit, x, values / size, series.samples_per_pair)
        lines_figure.add_line(line, number + 2, (top - (number + 1) * each + 0.02, top - number * each - 0.04))
    lines_figure.add_own_time(own, len(GAUGES) + 2, (0.0, each - 0.04))
    figure = framed(go.Figure(lines_figure.traces), colors, height=plot_px + 60)
    figure.update_layout(
        showlegend=False, hovermode="x", annotations=lines_figure.annotations, shapes=lines_figure.shapes, **lines_figure.axes
    )
    figure.update_xaxes(**time_axis(columns), anchor=f"y{len(GAUGES) + 2}")
    return figure


def _largest(values: NDArray[np.floating[Any]]) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if len(finite) else 0.0


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    unit: str
    x: NDArray[np.floating[Any]]
    y: NDArray[np.floating[Any]]
    samples_per_pair: int = 1
    shape: str = "linear"


@dataclass(slots=True)
class _LinesFigure:
    """Collected parts of the figure: Plotly is slow when many parts are added one by one."""

    columns: TimeColumns
    colors: Palette
    traces: list[go.Scatter] = field(default_factory=list)
    axes: dict[str, dict[str, Any]] = field(default_factory=dict)
    annotations: list[dict[str, Any]] = field(default_factory=list)
    shapes: list[dict[str, Any]] = field(default_factory=list)

    def add_line(self, line: _Line, axis: int, domain: tuple[float, float], color: str | None = None) -> None:
        """Add one of the multiples. Points that summarize several samples are their lowest and highest, so the line is a band."""
        of = f" (lowest or highest of {line.samples_per_pair})" if line.samples_per_pair > 1 else ""
        self.traces.append(
            go.Scatter(
                x=line.x.astype(np.float32),
                y=line.y.astype(np.float32),
                yaxis=f"y{axis}",
                mode="lines+markers" if len(line.x) < 40 else "lines",
                marker={"size": 4},
                line={"color": color or self.colors.compute, "width": 1.5, "shape": line.shape},
                name=line.name,
                hovertemplate=f"{line.name}: %{{y:,.5~g}} {line.unit}{of}<extra></extra>",
            )
        )
        self._axis(axis, domain, f"{line.name}, {line.unit}")
        if not np.isfinite(line.y).any():
            self._say("not known", domain)

    def add_own_time(self, own: OwnTime | None, axis: int, domain: tuple[float, float]) -> None:
        """Add the own time per step, or the reason why it is unknown."""
        if own is None:
            self.traces.append(go.Scatter(x=[None], y=[None], yaxis=f"y{axis}", hoverinfo="skip"))  # keeps the axis
            self._axis(axis, domain, "Own time")
            why = "no step has a time" if not self.columns.steps_each else "there are no steps of a rank on this GPU"
            self._say(f"not known: {why}", domain)
            return
        size, unit = shown_unit("us", _largest(own.own_us))
        line = _Line(f"Own time of rank {own.rank}", unit, own.steps.astype(np.float64), own.own_us / size, shape="hv")
        self.add_line(line, axis, domain, self.colors.exposed_communication)
        self.axes[f"yaxis{axis}"]["rangemode"] = "tozero"

    def add_events(self, events: Mapping[str, Sequence[HardwareEvent]], bottom: float) -> None:
        """Add a row of marks per kind above ``bottom``. Throttling and clock drops are shaded through all multiples below."""
        for kind, of_kind in events.items():
            ends = self._ends(of_kind)
            texts = [
                f"<b>{KIND_NAMES[kind]}</b>: {plotly_text(event.detail)}{'<br>SIMULATED' if event.simulated else ''}"
                for event in of_kind
            ]
            self.traces.append(
                go.Scatter(
                    x=[at for first, last in ends for at in (first, last, None)],
                    y=[KIND_NAMES[kind]] * 3 * len(of_kind),
                    mode="lines+markers",
                    line={"color": self.colors.emphasis, "width": 3},
                    marker={"symbol": ["x", "line-ns-open", "circle"] * len(of_kind), "size": 7, "color": self.colors.emphasis},
                    hovertext=[each for text in texts for each in (text, text, None)],
                    hoverinfo="text",
                    name=KIND_NAMES[kind],
                )
            )
        slowing = [event for kind, of_kind in events.items() if kind in THROTTLES or kind == "clock_drop" for event in of_kind]
        longest = sorted(slowing, key=lambda event: event.unix_ns - event.until_unix_ns)[:_SHADED]
        shade = {"fillcolor": self.colors.exposed_memcpy, "opacity": 0.22, "line": {"width": 0}}
        for first, last in self._ends(longest):
            ends_at = {"type": "rect", "layer": "below", "xref": "x", "yref": "paper", "x0": first, "x1": last, "y0": 0}
            self.shapes.append({**ends_at, "y1": bottom, **shade})
        names = [KIND_NAMES[kind] for kind in events]
        self.axes["yaxis"] = {
            **_y_axis((bottom + 0.01, 1.0), self.colors),
            "type": "category",
            "categoryorder": "array",
            "categoryarray": names[::-1],
            "range": [-0.6, len(names) - 0.4],
            "nticks": 0,
            "showgrid": False,
        }

    def _ends(self, events: Sequence[HardwareEvent]) -> list[list[float]]:
        times = np.array([[event.unix_ns, event.until_unix_ns] for event in events], np.int64).reshape(-1, 2)
        ends: list[list[float]] = self.columns.along(times).tolist()
        return ends

    def _axis(self, axis: int, domain: tuple[float, float], name: str) -> None:
        self.axes[f"yaxis{axis}"] = _y_axis(domain, self.colors)
        self.annotations.append(
            {**self._words(name), "x": 0, "y": domain[1], "xanchor": "left", "yanchor": "bottom", "borderpad": 0}
        )

    def _say(self, text: str, domain: tuple[float, float]) -> None:
        self.annotations.append({**self._words(text), "x": 0.5, "y": sum(domain) / 2})

    def _words(self, text: str) -> dict[str, Any]:
        font = {"color": self.colors.muted, "size": 11}
        return {"text": text, "xref": "paper", "yref": "paper", "showarrow": False, "font": font}


def _y_axis(domain: tuple[float, float], colors: Palette) -> dict[str, Any]:
    return {
        "domain": domain,
        "anchor": "x",
        "gridcolor": colors.grid,
        "zeroline": False,
        "tickfont": {"color": colors.muted, "size": 11},
        "nticks": 4,
        "automargin": True,
        "fixedrange": True,
    }
