"""The registry of pages: the properties that callbacks and the report rely on."""

from __future__ import annotations

from typing import Any

import pytest
from tests.dashboards.memory_runs import MemoryRuns

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.model.page import FigureBlock, Part, Table, walk
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.registry import SITE, VIEWS


def test_no_two_figures_or_tables_of_a_run_have_the_same_name(memory_runs: MemoryRuns) -> None:
    run = RunData(memory_runs, memory_runs.summary("run-1"))
    names: list[str] = []
    for view in VIEWS:
        try:
            blocks = view.blocks(run, PageState())
        except RankscopeError:
            continue  # this run has no what-if
        names += [block.name for block in walk(blocks) if isinstance(block, (FigureBlock, Table, Part))]
    assert len(names) == len(set(names)), "a report has all of them"


@pytest.mark.parametrize("pages", [VIEWS, SITE])
def test_every_page_has_an_address_of_its_own(pages: Any) -> None:
    addresses = [getattr(page, "slug", None) or getattr(page, "path", "") for page in pages]
    assert len(addresses) == len(set(addresses))
