"""The registry of pages: names, addresses, and that each figure, text and table declares the fields that it depends on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.dashboards import blocks as page_blocks
from tests.dashboards.blocks import text_of
from tests.dashboards.gpu_samples import samples_of, uuid, write_samples
from tests.dashboards.hosts_at_fault import host_analysis, host_table
from tests.dashboards.memory_runs import MemoryRuns

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.charts.palette import PALETTES
from rankscope.dashboards.model.page import Block, FigureBlock, Part, Table, walk
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.model.view import View
from rankscope.dashboards.registry import SITE, VIEWS
from rankscope.dashboards.store.disk import DiskRuns


def test_names_of_figures_and_tables_of_a_run_are_unique(memory_runs: MemoryRuns) -> None:
    run = page_blocks.run_of(memory_runs)
    names: list[str] = []
    for view in VIEWS:
        try:
            blocks = view.blocks(run, PageState())
        except RankscopeError:
            continue  # this run has no what-if
        names += [block.name for block in walk(blocks) if isinstance(block, (FigureBlock, Table, Part))]
    assert len(names) == len(set(names)), "a report has all of them"


@pytest.mark.parametrize("pages", [VIEWS, SITE])
def test_every_page_has_a_unique_url(pages: Any) -> None:
    addresses = [getattr(page, "slug", None) or getattr(page, "path", "") for page in pages]
    assert len(addresses) == len(set(addresses))


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


def test_every_state_field_has_a_non_default_test_value() -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "view", [item for item in VIEWS if item.slug in ("ranks", "overlap", "delays")], ids=lambda view: view.slug or "overview"
)
def test_block_depends_only_on_its_declared_state_fields(view: View, memory_runs: Any) -> None:
    memory_runs.put(host_analysis(), host_table())
    check(view, memory_runs, 2)


@pytest.mark.full
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.slug or "overview")
def test_block_of_a_recorded_run_depends_only_on_declared_fields(
    view: View, tmp_path: Path, write_run: Callable[..., Path]
) -> None:
    run = write_run(tmp_path / "run")
    write_samples(run, "node-1", samples_of(2), samples_of(3))
    check(view, DiskRuns(run), 2)
