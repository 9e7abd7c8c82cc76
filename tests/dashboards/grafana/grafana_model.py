"""Grafana's handling of a board's JSON, as far as the tests need it: panels, queries, interpolated variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rankscope.dashboards.grafana.shipped import shipped

Json = dict[str, Any]

BUILT_IN = {"__rate_interval": "15s", "__range_s": "300", "__range": "300s", "__interval_ms": "5000", "__interval": "5s"}
LONGER = BUILT_IN | {"__interval": "300s", "__interval_ms": "300000"}
"""Built-in variables of a panel with a minimum interval, for a longer time range."""
_VARIABLE = re.compile(r"\$\{(\w+)(?::\w+)?\}|\$(\w+)")


def all_boards() -> dict[str, Json]:
    """Return the shipped boards by uid."""
    return {board.uid: board.model for board in shipped()}


def panels(board: Json) -> Iterator[Json]:
    """Yield the panels, including those in collapsed rows, without the rows themselves."""
    for panel in board["panels"]:
        if panel["type"] != "row":
            yield panel
        yield from panel.get("panels", ())


@dataclass(frozen=True, slots=True)
class Target:
    board: str
    panel: Json
    letter: str
    expr: str

    def asked(self, values: Mapping[str, list[str] | str]) -> str:
        """Return the query that Prometheus gets."""
        return put_in(self.expr, values, built_in=LONGER if self.panel.get("interval") else BUILT_IN)

    @property
    def name(self) -> tuple[str, str, str]:
        return self.board, self.panel["title"], self.letter


def targets(board: Json) -> list[Target]:
    return [
        Target(board["uid"], panel, target["refId"], target["expr"])
        for panel in panels(board)
        for target in panel.get("targets", ())
    ]


def put_in(expr: str, values: Mapping[str, list[str] | str], *, built_in: Mapping[str, str] = BUILT_IN) -> str:
    """Return the expression that Prometheus gets: a list becomes an alternation of escaped values, a string is kept (for All)."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name in built_in:
            return built_in[name]
        if name.isdigit():  # a group of label_replace; Grafana leaves non-variables unchanged
            return match[0]
        result = values[name]
        if isinstance(result, str):
            return result
        escaped = [re.sub(r"[$^*{}\[\]'+?.()|]", r"\\\\\g<0>", item.replace("\\", "\\\\\\\\")) for item in result]
        return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"

    return _VARIABLE.sub(value, expr)
