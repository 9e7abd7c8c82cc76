"""Runs that are damaged or hostile: every page says what is wrong, none fails, and markup in a text of a run stays text."""

from __future__ import annotations

import copy
import json
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import plotly.io.json  # type: ignore[import-untyped]
import pytest
from tests.dashboards.bad_runs import BAD_RUNS
from tests.dashboards.gpu_samples import samples_of, write_samples

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
from rankscope.runs.paths import findings_file, rank_dir
from rankscope.runs.records import (
    AttemptInfo,
    CollectiveRecord,
    HardwareSample,
    KernelRecord,
    RankInfo,
    RunInfo,
    StackSamples,
    StepBreakdown,
    StepEvent,
)

WriteRun = Callable[..., Path]

EVERYTHING = (
    "?rank=1&steps=5-25&window=20&without=rank:2,stage:0,cause:input&group=default_pg&span=0-50000&collective=default_pg:20"
    "&gpu=GPU-00000000-5d1f-4a52-9c3e-0123456789ab&host=node-0&price=1.5&currency=EUR"
)
COLORS = PALETTES["light"]
FIGURE = re.compile(r'"id":\s*\{\s*"type":\s*"figure",\s*"name":\s*"([^"]*)"')
"""Pattern of the identifier of a figure."""


MARKUP: Final = "<a href=x>%{y}<b>"
"""Added to every string: a link, a template of Plotly, and a tag that the figures use themselves."""
RECORDS: Final[dict[str, type[msgspec.Struct]]] = {
    "run": RunInfo,
    "attempt": AttemptInfo,
    "rank": RankInfo,
    "events": StepEvent,
    "windows": StepBreakdown,
    "collectives": CollectiveRecord,
    "kernels": KernelRecord,
    "gpu": HardwareSample,
    "stacks": StackSamples,
}
KEPT: Final = {"run_id", "schema", "rank.json"}
"""Fields that are no free text: the run's id is part of addresses."""


def as_sent(page: Any) -> str:
    """Return a page or a figure as it is sent to a browser."""
    return str(plotly.io.json.to_json_plotly(page))


def pages_of(source: DiskRuns, run_id: str, other: str) -> Iterator[tuple[str, list[tuple[str, DrawnFigure]]]]:
    """Yield all pages, with their texts and tables, and the name and picture of all their figures."""
    pages = Pages(source, DashboardConfig())
    addresses = [
        ("/", ""),
        ("/lost-hours", ""),
        ("/alerts", ""),
        ("/compare", f"?runs={other},{run_id}"),
        ("/compare", f"?runs={run_id}&at=25"),
        *((run_path(run_id, view.slug), search) for view in VIEWS for search in ("", EVERYTHING)),
    ]
    for path, search in addresses:
        page = as_sent(pages.page(path, search).content)
        figures = []
        for name in FIGURE.findall(page):
            result = pages.figure(path, search, name, COLORS)
            assert result is not None, name
            figures.append((name, result[0]))
        yield page, figures


@pytest.mark.slow
@pytest.mark.sampled(30)
@pytest.mark.parametrize("name", BAD_RUNS)
def test_every_page_of_a_bad_run_renders_without_internal_errors(
    tmp_path: Path, write_run: WriteRun, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    run = write_run(tmp_path / "runs" / "bad", steps=32)
    write_run(tmp_path / "runs" / "other", run_id="other", steps=32, ranks=2, slow_rank=None)
    BAD_RUNS[name](run)
    source = DiskRuns(tmp_path / "runs")
    (summary,) = (item for item in source.runs() if item.path == str(run))
    for page, figures in pages_of(source, summary.run_id, "other"):
        for entry in (page, *(figure.sentence + as_sent(figure.figure) for _, figure in figures)):
            assert INTERNAL_ERROR not in entry
            assert "Traceback" not in entry
    if name == "device cuda of one":
        assert report(RunData(source, summary), PageState(), made_unix_ns=0, on_progress=lambda _: None).faults == []
    assert caplog.records == []


@pytest.mark.parametrize(
    "name", ["clock at the end", "clock before 1970", "1e308", "Infinity", "windows too large", "collectives at the end"]
)
def test_replayed_run_ends_despite_bad_timestamps(tmp_path: Path, write_run: WriteRun, name: str) -> None:
    run = write_run(tmp_path / "run", steps=32)
    BAD_RUNS[name](run)
    now_ns = time.time_ns()
    (tmp_path / "growing").mkdir()
    growing = GrowingRun(run, tmp_path / "growing", latest_unix_ns=now_ns)
    growing.advance(now_ns)
    assert growing.next_unix_ns is None


def with_markup(value: Any, fits: Callable[[Any], bool]) -> Any:
    """Return ``value`` with ``MARKUP`` in every string that ``fits`` accepts with it, also in keys."""
    if isinstance(value, str):
        return value + MARKUP if fits(value + MARKUP) else value
    if isinstance(value, list):
        for at, item in enumerate(value):
            value[at] = with_markup(item, partial(_fits_at, value, at, fits))
    elif isinstance(value, dict):
        for key in value.keys() - KEPT:
            value[key] = with_markup(value[key], partial(_fits_at, value, key, fits))
        renamed = {name + MARKUP: item for name, item in value.items()}
        return renamed if any(" " in name for name in value) and fits(renamed) else value
    return value


def _fits_at(container: Any, place: Any, fits: Callable[[Any], bool], new: Any) -> bool:
    changed = copy.copy(container)
    changed[place] = new
    return fits(changed)


def _is(kind: type[msgspec.Struct], value: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def plant(run: Path) -> None:
    """Put ``MARKUP`` into every free text of a run."""
    for file in [*run.rglob("*.json"), *run.rglob("*.jsonl")]:
        fits = partial(_is, RECORDS[file.stem.partition("-")[0]])
        text = file.read_text()
        records = [json.loads(line) for line in (text.splitlines() if file.suffix == ".jsonl" else [text])]
        file.write_text("".join(json.dumps(with_markup(record, fits)) + "\n" for record in records))
    for host in list((run / "hosts").iterdir()):
        host.rename(host.with_name(host.name + MARKUP))


@pytest.fixture
def source(tmp_path: Path, write_run: WriteRun) -> DiskRuns:
    """Two runs with free text everywhere."""
    for name in ("a", "b"):
        run = write_run(tmp_path / "runs" / name, run_id=name)
        for host in range(2):
            write_samples(run, f"node-{host}", samples_of(2 * host), samples_of(2 * host + 1))
        for rank in range(4):
            folder = rank_dir(run, 0, rank)
            events = [
                {"step": step, "end_unix_ns": 1, "tags": ["my tag"], "metrics": {"my loss": 1.0}, "sections_us": {"my part": 5.0}}
                for step in range(60)
            ]
            (folder / "events-000000.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
            kernel = {"step": 20, "kind": "compute", "name": "my kernel", "calls": 3, "total_us": 9000.0}
            (folder / "kernels-000000.jsonl").write_text(json.dumps(kernel) + "\n")
        plant(run)
        finding = {"fingerprint": "f", "status": "firing", "time_unix_ns": 1_790_000_001_000_000_000}
        findings_file(run).write_text(json.dumps(finding) + "\n")
    return DiskRuns(tmp_path / "runs")


@pytest.mark.slow
def test_markup_in_a_run_is_escaped_in_every_figure(source: DiskRuns) -> None:
    names = set()
    for name, drawn in (figure for _, figures in pages_of(source, "a", "b") for figure in figures):
        names.add(name)
        figure = json.dumps(json.loads(as_sent(drawn.figure)), ensure_ascii=False)
        assert INTERNAL_ERROR not in figure, name
        assert "<a" not in figure, name
        assert "%{y}<b>" not in figure, name
        assert "%{y}&lt;b" not in figure, name
    assert len(names) > 20


def test_markup_in_a_run_is_escaped_in_its_report(source: DiskRuns) -> None:
    made = report(RunData(source, source.summary("a")), PageState(), made_unix_ns=0, on_progress=lambda _: None)
    assert made.faults == []
    assert b"&lt;a href=x&gt;" in made.file
    assert b"<a href=x>" not in made.file
    assert b"<a href=x>" not in made.file.replace(b"\\u003c", b"<").replace(b"\\u003e", b">")
