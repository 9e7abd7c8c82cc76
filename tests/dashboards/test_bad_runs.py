"""For any damage to a run's folder every page reports the problem, and none fails with an internal error."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import plotly.io.json  # type: ignore[import-untyped]
import pytest
from dash.development.base_component import Component
from tests.dashboards.bad_runs import BAD_RUNS

from rankscope.alerts.replay.growing_run import GrowingRun
from rankscope.dashboards.charts.palette import PALETTES
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.live.pages import INTERNAL_ERROR, Pages
from rankscope.dashboards.model.drawn import DrawnFigure
from rankscope.dashboards.model.state import PageState, run_path
from rankscope.dashboards.registry import VIEWS
from rankscope.dashboards.report.document import report
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.dashboards.web.config import DashboardConfig

WriteRun = Callable[..., Path]

EVERYTHING = (
    "?rank=1&steps=5-25&window=20&without=rank:2,stage:0,cause:input&group=default_pg&span=0-50000&collective=default_pg:20"
    "&gpu=GPU-00000000-5d1f-4a52-9c3e-0123456789ab&host=node-0&price=1.5&currency=EUR"
)
COLORS = PALETTES["light"]
FIGURE = re.compile(r'"id":\s*\{\s*"type":\s*"figure",\s*"name":\s*"([^"]*)"')
"""Pattern of the identifier of a figure."""


def drawn(figure: DrawnFigure) -> str:
    """Return a figure as it is sent to a browser."""
    return figure.sentence + str(plotly.io.json.to_json_plotly(figure.figure))


def written(page: Component) -> str:
    return str(plotly.io.json.to_json_plotly(page))


def everything(source: DiskRuns, run_id: str) -> Iterator[str]:
    """Yield all pages, with their texts and tables, and all figures."""
    pages = Pages(source, DashboardConfig())
    addresses = [
        ("/", ""),
        ("/lost-hours", ""),
        ("/alerts", ""),
        ("/compare", f"?runs=other,{run_id}"),
        ("/compare", f"?runs={run_id}&at=25"),
        *((run_path(run_id, view.slug), search) for view in VIEWS for search in ("", EVERYTHING)),
    ]
    for path, search in addresses:
        page = pages.page(path, search).content
        yield written(page)
        for name in FIGURE.findall(written(page)):
            result = pages.figure(path, search, name, COLORS)
            assert result is not None, name
            yield drawn(result[0])


@pytest.mark.slow
@pytest.mark.sampled(15)
@pytest.mark.parametrize("name", BAD_RUNS)
def test_every_page_of_a_bad_run_is_there_and_nothing_is_our_fault(
    tmp_path: Path, write_run: WriteRun, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    run = write_run(tmp_path / "runs" / "bad", steps=32)
    write_run(tmp_path / "runs" / "other", run_id="other", steps=32, ranks=2, slow_rank=None)
    BAD_RUNS[name](run)
    source = DiskRuns(tmp_path / "runs")
    (summary,) = (item for item in source.runs() if item.path == str(run))
    for entry in everything(source, summary.run_id):
        assert INTERNAL_ERROR not in entry
        assert "Traceback" not in entry
    if name == "device cuda of one":
        assert report(RunData(source, summary), PageState(), made_unix_ns=0, on_progress=lambda _: None).faults == []
    assert caplog.records == []


@pytest.mark.parametrize(
    "name", ["clock at the end", "clock before 1970", "1e308", "Infinity", "windows too large", "collectives at the end"]
)
def test_a_run_that_is_replayed_comes_to_its_end_whatever_its_clocks_say(tmp_path: Path, write_run: WriteRun, name: str) -> None:
    run = write_run(tmp_path / "run", steps=32)
    BAD_RUNS[name](run)
    now_ns = time.time_ns()
    (tmp_path / "growing").mkdir()
    growing = GrowingRun(run, tmp_path / "growing", latest_unix_ns=now_ns)
    growing.advance(now_ns)
    assert growing.next_unix_ns is None
