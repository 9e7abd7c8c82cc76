"""Figures of waterfall, trend and throughput, with small numbers that can be checked by eye, and the script's own metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
import pytest
from tests.dashboards.blocks import draw, joined, notes, run_at
from tests.step_files import append

from rankscope.analysis.costs.waterfall import Amount, Costs, waterfall
from rankscope.analysis.inference.change_points import ChangePoint
from rankscope.dashboards.charts.downsampled_trend import MOST_POINTS, downsample
from rankscope.dashboards.charts.palette import PALETTES, Scheme
from rankscope.dashboards.data.script import MOST_METRICS, MOST_TAGS, Script, read_script, script_of, write_script
from rankscope.dashboards.data.trend import PERCENTILES, Trend
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.overview import script_rows
from rankscope.dashboards.overview.figures import NO_RATE, NO_STEPS, NO_WATERFALL, STYLES, rate_line, trend_lines, waterfall_bars
from rankscope.dashboards.overview.script_rows import add_rows
from rankscope.dashboards.overview.view import VIEW
from rankscope.runs.paths import rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import StepEvent

LIGHT = PALETTES["light"]


def trend(count: int = 4, **others: Any) -> Trend:
    """Return a trend of steps from 10 on; percentiles are 1 ms apart, the median rank is at 12 ms."""
    rows = np.arange(len(PERCENTILES), dtype=np.float32)[:, None] * 1_000 + 10_000
    times = np.broadcast_to(rows, (len(PERCENTILES), count)).copy()
    usual = Trend(
        steps=10 + np.arange(count),
        wall_us=times,
        own_us=times - 5_000,
        slowest=np.full(count, 7),
        samples=np.full(count, 6, np.float32),
        tokens=np.full(count, np.nan, np.float32),
        profiled=np.zeros(count, bool),
    )
    return replace(usual, **others)


def test_waterfall_parts_are_consecutive_and_unknown_parts_have_no_bar() -> None:
    # Given a step of 100 ms with known compute, communication and input
    costs = Costs(
        step_us=100_000,
        steps=50,
        amounts={
            "compute": Amount(40_000, "steps"),
            "exposed_communication": Amount(30_000, "windows"),
            "input": Amount(0, "steps"),
        },
    )
    # When it is drawn
    figure = waterfall_bars(waterfall(costs), LIGHT)
    # Then each bar begins where the previous one ends, and the last is the whole step
    assert [(bar.name, bar.base[0] if bar.base else 0, bar.x[0]) for bar in figure.data] == [
        ("compute", 0, 40),
        ("exposed communication", 40, 30),
        ("input", 70, 0),
        ("unexplained", 70, 30),
        ("mean", 0, 100),
    ]
    # And each duration is below its name, where it is not cut off; zero and unknown are distinct
    assert list(figure.layout.yaxis.ticktext) == [
        "compute<br><b>40 ms</b> · 40%", "exposed communication<br><b>30 ms</b> · 30%",
        "waiting for later ranks<br><i>not known</i>", "copies<br><i>not known</i>", "input<br><b>0 ms</b> · 0%",
        "host<br><i>not known</i>", "unexplained<br><b>30 ms</b> · 30%",
        "<b>mean step<br>100 ms</b>",
    ]  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_waterfall_parts_differ_in_colour_and_hatching(scheme: Scheme) -> None:
    assert len({getattr(PALETTES[scheme], style.color) for style in STYLES.values()}) == len(STYLES)
    hatches = [style.hatch for name, style in STYLES.items() if name not in {"ideal", "compute"}]
    assert all(hatches)
    assert len(set(hatches)) == len(hatches)


def test_overview_figures_have_fixed_margins() -> None:
    costs = Costs(step_us=100_000, steps=50, amounts={"input": Amount(60_000, "steps")})
    figures = [waterfall_bars(waterfall(costs), LIGHT), trend_lines(trend(), 0, 4, LIGHT)]
    for figure in figures:
        assert figure.layout.xaxis.automargin is False
        assert figure.layout.yaxis.automargin is False
    widest = "waiting for later ranks"
    assert figures[0].layout.margin.l >= 6.5 * len(widest)


def test_missing_waterfall_has_a_note() -> None:
    assert notes(waterfall_bars(None, LIGHT)) == [joined(NO_WATERFALL)]


def test_trend_shows_bands_median_and_slowest_rank() -> None:
    figure = trend_lines(trend(), 0, 4, LIGHT)
    lines = {line.name: line for line in figure.data if line.name}
    assert [*lines] == [
        "5 to 95% of the ranks", "25 to 75% of the ranks", "step time, longest rank", "step time, median rank",
        "own time, slowest rank",
    ]  # fmt: skip
    assert lines["step time, median rank"].x.tolist() == [10, 11, 12, 13]
    assert lines["step time, median rank"].y.tolist() == [12, 12, 12, 12]
    assert lines["25 to 75% of the ranks"].y.tolist() == [13, 13, 13, 13]
    assert lines["own time, slowest rank"].y.tolist() == [10, 10, 10, 10]
    assert set(lines["own time, slowest rank"].customdata) == {"rank 7"}


def test_trend_marks_changes_profiled_steps_and_later_attempts() -> None:
    flags = np.array([False, True, True, False])
    marked = trend(profiled=flags, changes=(ChangePoint(2, 10_000.0, 13_100.0),))
    figure = trend_lines(marked, 0, 4, LIGHT, attempt="attempt 2")
    assert notes(figure) == ["+31%", "attempt 2"]
    assert [(shape.x0, shape.x1) for shape in figure.layout.shapes] == [(10.5, 12.5), (12, 12), (10, 10)]
    # And marks outside the shown range are not drawn
    assert notes(trend_lines(marked, 3, 4, LIGHT, attempt="attempt 2")) == []


def test_unknown_own_times_are_not_drawn_as_zero() -> None:
    figure = trend_lines(trend(own_us=np.full((len(PERCENTILES), 4), np.nan, np.float32)), 0, 4, LIGHT)
    assert not any("own time" in (line.name or "") for line in figure.data)


@pytest.mark.parametrize("count", [0, 3])
def test_empty_trend_has_a_note(count: int) -> None:
    nothing = trend(count, wall_us=np.full((len(PERCENTILES), count), np.nan, np.float32))
    assert notes(trend_lines(nothing, 0, count, LIGHT)) == [joined(NO_STEPS)]


def test_downsampling_keeps_the_slowest_step_and_its_rank() -> None:
    # Given 10,000 steps, at one of which rank 3 takes a second
    long = trend(10_000)
    long.own_us[-1, 5_003], long.slowest[5_003] = 1e6, 3
    # When they are reduced to the number of points of a screen
    downsampled = downsample(long, 0, 10_000)
    # Then the slow step is still there, and the median is unchanged
    assert len(downsampled.steps) <= MOST_POINTS
    at = int(downsampled.highest_own_us.argmax())
    assert downsampled.highest_own_us[at] == 1e6
    assert downsampled.slowest[at] == 3
    assert downsampled.steps[at] <= 5_013 < downsampled.steps[at] + downsampled.steps_per_point
    assert (downsampled.wall_us[2] == 12_000).all()


@pytest.mark.parametrize("count", [301, 10_001])
def test_one_slow_step_of_many_is_drawn_at_its_full_length(count: int) -> None:
    times = trend(count).wall_us
    times[:, 150] = 30e6
    drawn = trend_lines(trend(count, wall_us=times), 0, count, LIGHT)
    longest: Any = next(line for line in drawn.data if (line.name or "").startswith("step time, longest"))
    assert max(longest.y) == pytest.approx(30)
    assert drawn.layout.yaxis.title.text == "s"


def test_stacked_charts_share_their_axis() -> None:
    upper = trend_lines(trend(), 0, 4, LIGHT).layout
    lower = rate_line(trend(), 0, 4, LIGHT, replicas=None)[0].layout
    assert (upper.margin.l, upper.margin.r, upper.xaxis.range) == (lower.margin.l, lower.margin.r, lower.xaxis.range)
    assert upper.margin.l >= 60, "labels of any length begin left of the same axis"


def test_throughput_is_per_job_if_the_replica_count_is_known() -> None:
    profiled = np.array([False, False, True, False])
    for replicas, each, of in ((8, 4_000, "of the job"), (None, 500, "of one rank")):
        figure, rate, _ = rate_line(trend(profiled=profiled), 0, 4, LIGHT, replicas=replicas)
        assert rate.tolist() == pytest.approx([each, each, np.nan, each], nan_ok=True)
        assert figure.layout.yaxis.title.text == f"samples/s {of}"


def test_unreported_throughput_is_unknown() -> None:
    figure, rate, _ = rate_line(trend(samples=np.full(4, np.nan, np.float32)), 0, 4, LIGHT, replicas=8)
    assert np.isnan(rate).all()
    assert notes(figure) == [joined(NO_RATE)]


WriteRun = Callable[..., Path]


def event(step: int, **fields: Any) -> StepEvent:
    return StepEvent(step=step, end_unix_ns=1, **fields)


def test_metrics_come_from_the_first_rank_that_reports_any(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run", steps=12)
    append(rank_dir(run, 0, 0), "events", event(3, tags=["eval"]))
    append(
        rank_dir(run, 0, 3),
        "events",
        *(event(step, metrics={"loss": 2.0 - step, "<b>\n": 1e300}) for step in (8, 2, 4)),
        event(4, tags=["eval"], metrics={"loss": -7.0}),
        event(-5, metrics={"loss": 1.0}),
    )
    script = script_of(RunReader(run), 0, [0, 1, 2, 3])
    assert script.rank == 3
    assert [array.tolist() for array in script.metrics["loss"]] == [[2, 4, 8], [0.0, -7.0, -6.0]]
    assert set(script.metrics) == {"loss", "<b>\\n"}
    assert script.tags["eval"].tolist() == [4]
    write_script(script, tmp_path / "script.npz")
    again = read_script(tmp_path / "script.npz")
    assert (again.rank, again.tags["eval"].tolist()) == (3, [4])
    assert again.metrics["loss"][1].tolist() == [0.0, -7.0, -6.0]


def test_run_without_metrics_shows_tags_of_the_first_rank(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run", steps=12)
    append(rank_dir(run, 0, 0), "events", *(event(3, tags=[f"tag{number}"]) for number in range(MOST_TAGS + 3)))
    script = script_of(RunReader(run), 0, [0, 1, 2, 3])
    assert (script.rank, script.metrics, len(script.tags)) == (0, {}, MOST_TAGS)
    assert script_of(RunReader(run), 0, []) == Script()


def test_metric_rows_share_the_axis_of_the_trend(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run", steps=60)
    plain = draw(VIEW, "trend", run_at(run), PageState())
    append(
        rank_dir(run, 0, 0), "events", *(event(step, metrics={"loss": 5 - step / 20, "tags": 0.1}) for step in range(0, 60, 5))
    )
    append(rank_dir(run, 0, 0), "events", event(30, tags=["checkpoint"]))
    drawn = draw(VIEW, "trend", run_at(run), PageState(steps=(10, 40)))
    layout = drawn.figure.layout
    assert layout.height > plain.figure.layout.height
    domains = [layout[name].domain for name in ("yaxis", "yaxis2", "yaxis3", "yaxis4")]
    assert all(low < high for low, high in domains)
    assert all(below[1] < above[0] for above, below in pairwise(domains))
    assert layout.xaxis.anchor == "y4"
    loss = next(line for line in drawn.figure.data if line.yaxis == "y2")
    assert loss.x.tolist() == list(range(10, 41, 5))
    assert "The script of rank 0: last loss 3, tags 0.1; tagged checkpoint 1 step" in drawn.sentence
    assert "script" not in plain.sentence


def test_metric_rows_are_downsampled_and_names_escaped() -> None:
    steps = np.arange(100_000, dtype=np.int64)
    names = [f"<img src=x>{number}" for number in range(MOST_METRICS)]
    figure = go.Figure(go.Scatter(x=[0], y=[0]))
    figure.update_layout(height=340, yaxis={"title": {"font": {"size": 12}}})
    add_rows(figure, Script(0, dict.fromkeys(names, (steps, steps.astype(np.float64)))), PALETTES["light"])
    assert all(len(line.x) <= script_rows.MOST_POINTS for line in figure.data)
    assert "<img" not in figure.to_json()
