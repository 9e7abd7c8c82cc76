"""Builder of a board: rows, places on the grid, and the panels that had to be left out."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import GridPos, Panel, ValueMap

from rankscope.dashboards.grafana.boards import kinds
from rankscope.dashboards.grafana.boards.kinds import Column, Graph, Head, Links, Query, Thresholds
from rankscope.dashboards.grafana.boards.marks import NO_DATA, PLAIN

GRID = 24


@dataclass(slots=True)
class Canvas:
    """Builder of a board from panels in reading order. A panel without its first query is omitted and listed in ``left_out``.

    ``figure_width``: default width of single figures; ``no_value``: text of panels without data.
    """

    board: Dashboard
    no_value: str = NO_DATA
    figure_width: int = 4
    left_out: list[str] = field(default_factory=list)
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

    def graph(
        self,
        title: str,
        description: str,
        unit: str,
        *queries: Query | None,
        width: int = 8,
        height: int = 8,
        look: Graph | None = None,
    ) -> None:
        """Add a graph; see ``kinds.graph``."""
        asked = self._asked(title, queries)
        if asked:
            self._put(kinds.graph(self._head(title, description, unit, width, height), asked, look or Graph()))

    def figure(
        self,
        title: str,
        description: str,
        unit: str,
        expr: str | None,
        *,
        width: int | None = None,
        thresholds: Thresholds = ((None, PLAIN),),
        words: ValueMap | None = None,
        links: Links = (),
        decimals: int | None = None,
        legend: str = "",
    ) -> None:
        """Add a single figure; see ``kinds.figure``."""
        asked = self._asked(title, [None if expr is None else Query(expr, legend)])
        if asked:
            head = self._head(title, description, unit, width or self.figure_width, 4)
            self._put(kinds.figure(head, asked[0], thresholds=thresholds, words=words, links=links, decimals=decimals))

    def sheet(
        self,
        title: str,
        description: str,
        columns: Sequence[Column],
        *exprs: str,
        width: int = 24,
        height: int = 8,
        sort: str | None = None,
    ) -> None:
        """Add a table; see ``kinds.sheet``. The value column is ``Value``, or ``Value #A`` and so on for several queries."""
        head = self._head(title, description, "short", width, height)
        self._put(kinds.sheet(head, [Query(expr) for expr in exprs], columns, sort=sort))

    def timeline(
        self,
        title: str,
        description: str,
        words: ValueMap,
        *queries: Query | None,
        width: int = 24,
        height: int = 8,
        links: Links = (),
    ) -> None:
        """Add a timeline of states; see ``kinds.timeline``."""
        asked = self._asked(title, queries)
        if asked:
            self._put(kinds.timeline(self._head(title, description, "short", width, height), asked, words, links=links))

    def buckets(self, title: str, description: str, unit: str, query: Query, *, width: int = 12, height: int = 8) -> None:
        """Add a histogram over time; see ``kinds.buckets``."""
        self._put(kinds.buckets(self._head(title, description, unit, width, height), query))

    def done(self) -> Dashboard:
        """Return the finished board."""
        self._end_row()
        return self.board

    def _asked(self, title: str, queries: Sequence[Query | None]) -> list[Query]:
        if queries[0] is None:
            self.left_out.append(title)
            return []
        return [query for query in queries if query is not None]

    def _head(self, title: str, description: str, unit: str, width: int, height: int) -> Head:
        self._begin_row()
        if self._x + width > GRID:
            self._next_line()
        place = GridPos(x=self._x, y=self._y, w=width, h=height)
        self._x += width
        self._line = max(self._line, height)
        return Head(identity(title), title, description, unit, place, self.no_value)

    def _put(self, panel: Builder[Panel]) -> None:
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
