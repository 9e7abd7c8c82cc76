"""Builder of a board: rows, and places on the grid."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row
from grafana_foundation_sdk.models.dashboard import GridPos, ValueMap

from rankscope.dashboards.grafana.boards.panels import kinds
from rankscope.dashboards.grafana.boards.panels.kinds import BoardColumn, GraphStyle, Query
from rankscope.dashboards.grafana.boards.panels.marks import NO_DATA, NOTHING

GRID = 24
GraphRow = tuple[str, str, Sequence[Query | None], dict[str, Any], str]
"""Title, unit, queries, fields of ``kinds.GraphStyle`` and ``width``, description."""
FigureRow = tuple[str, str, str, dict[str, Any], str]
"""Title, unit, expression, arguments of ``kinds.figure`` and ``width`` and ``legend``, description."""


@dataclass(slots=True)
class Canvas:
    """Builder of a board from panels in reading order.

    ``figure_width``: default width of single figures; ``no_value``: text of panels without data.
    """

    board: Dashboard
    no_value: str = NO_DATA
    figure_width: int = 4
    _x: int = 0
    _y: int = 0
    _line: int = 0
    _row: Row | None = None
    _filled: bool = False

    def row(self, title: str, *, collapsed: bool = False) -> None:
        """Begin a row; a row without panels is omitted."""
        self._end_row()
        self._row = Row(title).collapsed(collapsed).id(identity(f"row {title}"))
        self._filled = False

    def graph(self, title: str, unit: str, description: str, *queries: Query | None, width: int = 8, **style: Any) -> None:
        """Add a graph; ``style`` are the fields of ``kinds.GraphStyle``."""
        graph_style = GraphStyle(**style)
        panel = kinds.graph([query for query in queries if query is not None], graph_style)
        self._put(panel, title, unit, description, width, no_value=graph_style.no_value)

    def graphs(self, last: Query | None, *rows: GraphRow) -> None:
        """Add graphs, each with the query ``last``, too, if there is one."""
        for title, unit, queries, style, description in rows:
            self.graph(title, unit, description, *queries, last, **style)

    def figures(self, *rows: FigureRow) -> None:
        """Add single figures; see ``kinds.figure``."""
        for title, unit, expr, style, description in rows:
            more = {"width": self.figure_width, "legend": "", **style}
            width = more.pop("width")
            self._put(kinds.figure(Query(expr, more.pop("legend")), **more), title, unit, description, width, height=4)

    def sheet(
        self,
        title: str,
        description: str,
        columns: Sequence[BoardColumn],
        rows: str | None = None,
        *,
        width: int = 24,
        sort: str | None = None,
    ) -> None:
        """Add a table; see ``kinds.sheet``."""
        self._put(kinds.sheet(rows, columns, sort=sort), title, "short", description, width, no_value=NOTHING)

    def timeline(self, title: str, description: str, words: ValueMap, *queries: Query, width: int) -> None:
        """Add a timeline of states; see ``kinds.timeline``."""
        self._put(kinds.timeline(queries, words), title, "short", description, width)

    def buckets(self, title: str, unit: str, description: str, query: Query) -> None:
        """Add a histogram over time; see ``kinds.buckets``."""
        self._put(kinds.buckets(query, unit), title, unit, description, 8)

    def done(self) -> Dashboard:
        """Return the finished board."""
        self._end_row()
        return self.board

    def _put(
        self, panel: kinds.Kind, title: str, unit: str, description: str, width: int, *, height: int = 8, no_value: str = ""
    ) -> None:
        self._begin_row()
        if self._x + width > GRID:
            self._next_line()
        panel.id(identity(title)).title(title).description(description).datasource(kinds.DATASOURCE)
        panel.unit(unit).no_value(no_value or self.no_value).grid_pos(GridPos(x=self._x, y=self._y, w=width, h=height))
        self._x += width
        self._line = max(self._line, height)
        if self._row is not None and self._row.build().collapsed:
            self._row.with_panel(panel)
        else:
            self.board.with_panel(panel)

    def _begin_row(self) -> None:
        if self._row is None or self._filled:
            return
        self._filled = True
        self._next_line()
        self._row.grid_pos(GridPos(x=0, y=self._y, w=GRID, h=1))
        self._y += 1
        if not self._row.build().collapsed:
            self.board.with_row(self._row)

    def _end_row(self) -> None:
        if self._row is None or not self._filled:
            return
        if self._row.build().collapsed:
            # Panels in a collapsed row take no room until the row is opened.
            self.board.with_row(self._row)
            self._x, self._line = 0, 0
            place = self._row.build().grid_pos
            assert place is not None
            self._y = place.y + 1
        else:
            self._next_line()

    def _next_line(self) -> None:
        self._x, self._y, self._line = 0, self._y + self._line, 0


def identity(title: str) -> int:
    """Return a panel's id, derived from its title, so that it is stable when other panels change."""
    return zlib.crc32(title.encode()) % 900_000 + 1
