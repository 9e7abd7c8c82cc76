"""The script's own metrics and tags below the trend of the steps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
from tests.dashboards.blocks import draw, run_of
from tests.step_files import append

from rankscope.dashboards.charts.palette import PALETTES
from rankscope.dashboards.data.script import MOST_METRICS, MOST_TAGS, Script, read_script, stored_script, write_script
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.overview.script_rows import MOST_POINTS, add_rows
from rankscope.dashboards.overview.view import VIEW
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.runs.paths import rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import StepEvent

WriteRun = Callable[..., Path]


def event(step: int, **fields: Any) -> StepEvent:
    return StepEvent(step=step, end_unix_ns=1, **fields)


def test_metrics_are_those_of_the_first_rank_that_reports_any(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run", steps=12)
    append(rank_dir(run, 0, 0), "events", event(3, tags=["eval"]))
    append(
        rank_dir(run, 0, 3),
        "events",
        *(event(step, metrics={"loss": 2.0 - step, "<b>\n": 1e300}) for step in (8, 2, 4)),
        event(4, tags=["eval"], metrics={"loss": -7.0}),
        event(-5, metrics={"loss": 1.0}),
    )
    script = read_script(RunReader(run), 0, [0, 1, 2, 3])
    assert script.rank == 3
    assert [array.tolist() for array in script.metrics["loss"]] == [[2, 4, 8], [0.0, -7.0, -6.0]]
    assert set(script.metrics) == {"loss", "<b>\\n"}
    assert script.tags["eval"].tolist() == [4]
    write_script(script, tmp_path / "script.npz")
    again = stored_script(tmp_path / "script.npz")
    assert (again.rank, again.tags["eval"].tolist()) == (3, [4])
    assert again.metrics["loss"][1].tolist() == [0.0, -7.0, -6.0]


def test_a_run_without_metrics_has_the_tags_of_its_first_rank(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run", steps=12)
    append(rank_dir(run, 0, 0), "events", *(event(3, tags=[f"tag{number}"]) for number in range(MOST_TAGS + 3)))
    script = read_script(RunReader(run), 0, [0, 1, 2, 3])
    assert (script.rank, script.metrics, len(script.tags)) == (0, {}, MOST_TAGS)
    assert read_script(RunReader(run), 0, []) == Script()


def test_each_metric_has_a_row_below_the_steps_and_shares_their_axis(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run", steps=60)
    plain = draw(VIEW, "trend", run_of(DiskRuns(run)), PageState())
    append(
        rank_dir(run, 0, 0), "events", *(event(step, metrics={"loss": 5 - step / 20, "tags": 0.1}) for step in range(0, 60, 5))
    )
    append(rank_dir(run, 0, 0), "events", event(30, tags=["checkpoint"]))
    drawn = draw(VIEW, "trend", run_of(DiskRuns(run)), PageState(steps=(10, 40)))
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


def test_long_runs_have_few_points_and_hostile_names_are_text() -> None:
    steps = np.arange(100_000, dtype=np.int64)
    names = [f"<img src=x>{number}" for number in range(MOST_METRICS)]
    figure = go.Figure(go.Scatter(x=[0], y=[0]))
    figure.update_layout(height=340, yaxis={"title": {"font": {"size": 12}}})
    add_rows(figure, Script(0, dict.fromkeys(names, (steps, steps.astype(np.float64)))), PALETTES["light"])
    assert all(len(line.x) <= MOST_POINTS for line in figure.data)
    assert "<img" not in figure.to_json()
