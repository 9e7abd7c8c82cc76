"""Markup in any text of a run is text on every page, in every figure and in the report."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import plotly.io.json  # type: ignore[import-untyped]
import pytest
from tests.dashboards.gpu_samples import samples_of, write_samples

from rankscope.dashboards.charts.palette import PALETTES
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.live.pages import INTERNAL_ERROR, Pages
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
FIGURE: Final = re.compile(r'"id":\s*\{\s*"type":\s*"figure",\s*"name":\s*"([^"]*)"')


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


def _fits_at(whole: Any, place: Any, fits: Callable[[Any], bool], new: Any) -> bool:
    changed = copy.copy(whole)
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


def everything(source: DiskRuns) -> Iterator[tuple[str, str]]:
    """Yield the name and JSON of every figure of every page."""
    pages, selection = Pages(source, DashboardConfig()), "?rank=1&steps=5-25&window=20&without=rank:2,cause:input"
    addresses = [
        *((path, "") for path in ("/", "/lost-hours", "/alerts")),
        ("/compare", "?runs=a,b"),
        ("/compare", "?runs=a&at=25"),
        *((run_path("a", view.slug), search) for view in VIEWS for search in ("", selection)),
    ]
    for path, search in addresses:
        page = str(plotly.io.json.to_json_plotly(pages.page(path, search).content))
        for name in FIGURE.findall(page):
            result = pages.figure(path, search, name, PALETTES["light"])
            assert result is not None, name
            plain = json.loads(plotly.io.json.to_json_plotly(result[0].figure))
            yield f"{path}{search} {name}", json.dumps(plain, ensure_ascii=False)


@pytest.mark.slow
def test_markup_in_a_run_is_text_in_every_figure(source: DiskRuns) -> None:
    names = set()
    for name, figure in everything(source):
        names.add(name.rpartition(" ")[2])
        assert INTERNAL_ERROR not in figure, name
        assert "<a" not in figure, name
        assert "%{y}<b>" not in figure, name
        assert "%{y}&lt;b" not in figure, name
    assert len(names) > 20


def test_markup_in_a_run_is_text_in_its_report(source: DiskRuns) -> None:
    made = report(RunData(source, source.summary("a")), PageState(), made_unix_ns=0, on_progress=lambda _: None)
    assert made.faults == []
    assert b"&lt;a href=x&gt;" in made.file
    assert b"<a href=x>" not in made.file
    assert b"<a href=x>" not in made.file.replace(b"\\u003c", b"<").replace(b"\\u003e", b">")
