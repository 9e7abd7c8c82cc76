"""Selections survive in the page's address, and each figure, text and table declares the fields that it depends on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.dashboards import blocks as page_blocks
from tests.dashboards.blocks import text_of
from tests.dashboards.gpu_samples import samples_of, uuid, write_samples
from tests.dashboards.hosts_at_fault import host_analysis, host_table

from rankscope.analysis.evidence.step_table.steps import METRICS
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.charts.palette import PALETTES
from rankscope.dashboards.model.page import Block, FigureBlock, Part, Table, walk
from rankscope.dashboards.model.state import DEFAULT_METRIC, PageState, run_of, run_path
from rankscope.dashboards.model.view import View
from rankscope.dashboards.registry import VIEWS
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.runs.links import overview_url

ranges = st.tuples(st.integers(0, 10**12), st.integers(0, 10**12)).map(lambda pair: (min(pair), max(pair)))
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
states = st.builds(
    PageState,
    rank=st.none() | st.integers(0, 9_999_999),
    metric=st.sampled_from(sorted(METRICS)),
    steps=st.none() | ranges,
    sort=st.sampled_from(["rank", "host", "imposed"]),
    rows=st.sampled_from(["rank", "host"]),
    group=st.none() | words,
    window=st.none() | st.integers(0, 10**12),
    span=st.none() | ranges,
    without=st.lists(words.filter(lambda word: "," not in word), max_size=5, unique=True).map(tuple),
    gpu=st.none() | words,
)


@given(states)
def test_what_is_written_is_read_back(state: PageState) -> None:
    assert PageState.parse(state.search) == state


@given(st.text())
@example("?rank=²&metric=own_us")
@example("?rank=" + "9" * 5000)
@example("&".join(["rank=1"] * 100))
def test_any_address_gives_a_state_that_can_be_written(search: str) -> None:
    state = PageState.parse(search)
    assert PageState.parse(state.search) == state


def test_nothing_selected_leaves_the_address_clean() -> None:
    assert PageState().search == ""
    assert PageState.parse(None) == PageState.parse("") == PageState()


@pytest.mark.parametrize(
    "search",
    [
        "?rank=-1",
        "?rank=two",
        "?rank=",
        "?metric=<script>",
        "?metric=",
        "?rows=stage",
        "?steps=5-3",
        "?steps=5",
        "?steps=-1-3",
    ],
)
def test_what_cannot_be_read_is_at_its_default(search: str) -> None:
    assert PageState.parse(search) == PageState(rank=None, metric=DEFAULT_METRIC)


@given(st.text(min_size=1), st.none() | st.integers(0, 10_000))
def test_links_of_alerts_lead_to_the_page_they_mean(run_id: str, rank: int | None) -> None:
    url = urlsplit(overview_url("http://host:1", run_id, rank=rank))
    assert url.path == run_path(run_id)
    assert run_of(url.path) == (run_id, "")
    assert run_of(run_path(run_id, "ranks")) == (run_id, "ranks")
    assert PageState.parse(url.query) == PageState(rank=rank)


@pytest.mark.parametrize("path", [None, "", "/", "/run", "/run/", "/runs/x", "/run/a/b/c", "/x"])
def test_other_paths_are_no_run(path: str | None) -> None:
    assert run_of(path) is None


OTHER: Mapping[str, str] = {
    "rank": "1", "metric": "wall_us", "steps": "5-20", "sort": "value", "rows": "host", "group": "default_pg", "window": "20",
    "span": "10-500", "collective": "default_pg:3", "without": "rank:2", "gpu": uuid(2), "gauge": "power_watts", "step": "7",
    "price": "3", "currency": "EUR", "runs": "a,b", "at": "9", "by": "rank", "since": "7d", "q": "x",
    "picked": "x", "pair": "b",
}  # fmt: skip
"""Another value of each field."""


class RecordedState(PageState):
    """Selection that records which of its fields are read."""

    __slots__ = ()
    read: ClassVar[set[str]] = set()

    def __getattribute__(self, name: str) -> object:
        if name in OTHER:
            RecordedState.read.add(name)
        return super().__getattribute__(name)


def drawables(view: View, source: Any, state: PageState) -> Iterator[Any]:
    """Yield the blocks of a view that are drawn again."""
    try:
        blocks: list[Block] = list(view.blocks(page_blocks.run_of(source), state))
    except RankscopeError:
        return
    yield from (block for block in walk(blocks) if isinstance(block, (FigureBlock, Part, Table)))


def content(block: Any) -> str:
    """Return what a block shows."""
    try:
        if isinstance(block, FigureBlock):
            drawn = block.draw(PALETTES["light"])
            shown: str = drawn.figure.to_json() + drawn.sentence
            return shown
        return text_of(block.make(), "|") if isinstance(block, Part) else json.dumps([block.rows(), repr(block.columns)])
    except RankscopeError as error:
        return str(error)


def test_every_field_has_another_value() -> None:
    assert set(OTHER) == {field.name for field in fields(PageState)}
    assert all(getattr(PageState().with_field(name, text), name) != getattr(PageState(), name) for name, text in OTHER.items())


def check(view: View, source: Any, expected: int) -> None:
    """Assert that the blocks of a view depend on no field that they do not declare; ``expected``: least number of blocks."""
    before = {(type(block), block.name): content(block) for block in drawables(view, source, PageState())}
    assert len(before) >= expected
    for name, text in OTHER.items():
        for block in drawables(view, source, PageState().with_field(name, text)):
            if block.reads is not None and name not in block.reads:
                assert content(block) == before[type(block), block.name], f"{block.name} depends on {name}"
    for block in drawables(view, source, RecordedState()):
        RecordedState.read.clear()
        content(block)
        assert block.reads is None or RecordedState.read <= set(block.reads), block.name


@pytest.mark.parametrize(
    "view",
    [item for item in VIEWS if item.slug in ("ranks", "overlap", "delays")],
    ids=lambda view: view.slug or "overview",
)
def test_what_does_not_declare_a_field_does_not_depend_on_it(view: View, memory_runs: Any) -> None:
    memory_runs.put(host_analysis(), host_table())
    check(view, memory_runs, 2)


@pytest.mark.full
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.slug or "overview")
def test_of_a_recorded_run_neither(view: View, tmp_path: Path, write_run: Callable[..., Path]) -> None:
    run = write_run(tmp_path / "run")
    write_samples(run, "node-1", samples_of(2), samples_of(3))
    check(view, DiskRuns(run), 2)
