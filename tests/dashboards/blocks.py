"""Blocks of a page, found and called by name as the page does, and their texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from plotly.utils import PlotlyJSONEncoder  # type: ignore[import-untyped]

from rankscope.dashboards.charts.palette import PALETTES, Palette
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.live.pages import Page, Pages, verdict_kind
from rankscope.dashboards.model.drawn import DrawnFigure
from rankscope.dashboards.model.line import PageLink, pieces
from rankscope.dashboards.model.page import Block, FigureBlock, Inline, Part, Table, Text, find, walk
from rankscope.dashboards.model.run_head import run_head
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.model.view import View
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.dashboards.web.config import DashboardConfig

B = TypeVar("B", bound=Block)
UNSEEN = {"kind", "role", "style", "tag", "tone"}
"""Fields of blocks that are no text."""


def run_of(source: Any, run_id: str = "run-1") -> RunData:
    """Return what a view is made of."""
    return RunData(source, source.summary(run_id))


def run_at(path: Path) -> RunData:
    """Return the run that ``write_run`` wrote into a folder."""
    return run_of(DiskRuns(path))


def notes(figure: Any) -> list[str]:
    """Return the texts that are written on a figure, without their line breaks."""
    return [joined(annotation.text) for annotation in figure.layout.annotations]


def joined(text: str) -> str:
    """Return a text of a figure without its line breaks."""
    return text.replace("<br>", " ")


def run_text(source: Any, view: View) -> str:
    """Return all text of a run's page, from its name on."""
    run = run_of(source)
    return text_of([*run_head(run.summary, verdict_kind(run)), *view.blocks(run, PageState())], " ")


def block(kind: type[Block], view: View, name: str, run: RunData, state: PageState) -> Any:
    """Return a block of a view."""
    result = find(view.blocks(run, state), kind, name)
    assert result is not None, name
    return result


def only(blocks: Sequence[Block], kind: type[B]) -> B:
    """Return the only block of a kind."""
    (result,) = (block for block in walk(blocks) if isinstance(block, kind))
    return result


def figure_names(view: View, run: RunData, state: PageState) -> list[str]:
    """Return the names of the figures of a view."""
    return [block.name for block in walk(view.blocks(run, state)) if isinstance(block, FigureBlock)]


def draw(view: View, name: str, run: RunData, state: PageState, colors: Palette = PALETTES["light"]) -> DrawnFigure:
    """Draw a figure."""
    figure: DrawnFigure = block(FigureBlock, view, name, run, state).draw(colors)
    return figure


def write(view: View, name: str, run: RunData, state: PageState) -> Sequence[Block]:
    """Return the blocks of a part."""
    blocks: Sequence[Block] = block(Part, view, name, run, state).make()
    return blocks


def table_rows(view: View, name: str, run: RunData, state: PageState) -> list[dict[str, Any]]:
    """Return the rows of a table."""
    result: list[dict[str, Any]] = block(Table, view, name, run, state).rows()
    return result


def pick(view: View, name: str, run: RunData, state: PageState, point: Mapping[str, Any]) -> PageState:
    """Return the selection after a click on a point of a figure."""
    after: PageState = block(FigureBlock, view, name, run, state).pick(point)
    return after


def pick_row(view: View, name: str, run: RunData, state: PageState, row: str) -> PageState:
    """Return the selection after a click on a row of a table."""
    after: PageState = block(Table, view, name, run, state).pick(row)
    return after


def zoom(view: View, name: str, run: RunData, state: PageState, across: tuple[float, float] | None) -> PageState:
    """Return the selection after dragging over a figure."""
    after: PageState = block(FigureBlock, view, name, run, state).zoom(across)
    return after


def text_of(content: Any, between: str = "") -> str:
    """Return all text of blocks, with that of their parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, Part):
        return text_of(content.make(), between)
    if isinstance(content, (list, tuple)):
        return between.join(filter(None, (text_of(field, between) for field in content)))
    if is_dataclass(content):
        return text_of([getattr(content, field.name) for field in fields(content) if field.name not in UNSEEN], between)
    return ""


def page_links(blocks: Sequence[Block]) -> list[PageLink]:
    """Return the links in lines of blocks."""
    lines = [block.line for block in walk(blocks) if isinstance(block, (Inline, Text))]
    return [piece for line in lines for piece in pieces(line) if isinstance(piece, PageLink)]


def page_for(path: object, search: object, source: Any, config: DashboardConfig | None = None) -> Page:
    """Return the page of an address."""
    return Pages(source, config or DashboardConfig()).page(path, search)


def page_text(source: Any, path: object, search: object = "", config: DashboardConfig | None = None) -> str:
    """Return the page of an address as JSON, with all its texts; for what ``Pages`` adds to the blocks, such as errors."""
    page = page_for(path, search, source, config).content
    return json.dumps(page, cls=PlotlyJSONEncoder, ensure_ascii=False)


def draw_at(source: Any, path: str, name: str, search: str = "", colors: Palette = PALETTES["light"]) -> tuple[DrawnFigure, bool]:
    """Draw the figure of a page, and return whether it is final."""
    result = Pages(source, DashboardConfig()).figure(path, search, name, colors)
    assert result is not None, name
    return result
