"""What Grafana does with a board's JSON, as far as the tests need it: panels, queries, variables put in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

Json = dict[str, Any]

BUILT_IN = {
    "__rate_interval": "15s",
    "__range_s": "300",
    "__range": "300s",
    "__interval_ms": "5000",
    "__interval": "5s",
}
LONGER = BUILT_IN | {"__interval": "300s", "__interval_ms": "300000"}
"""In a panel with a least interval, when somebody looks at a longer time."""
_VARIABLE = re.compile(r"\$\{(\w+)(?::\w+)?\}|\$(\w+)")


def boards(kind: str) -> dict[str, Json]:
    """The shipped boards by uid; ``native`` or ``dcgm``."""
    folder = files("rankscope.dashboards") / "grafana" / "json" / kind
    found = [json.loads(file.read_text(encoding="utf-8")) for file in folder.iterdir()]
    return {board["uid"]: board for board in found if "uid" in board}


def all_boards() -> dict[str, Json]:
    return boards("native") | boards("dcgm")


def panels(board: Json) -> Iterator[Json]:
    """Panels, those in collapsed rows included; no rows."""
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
        """What Prometheus is asked."""
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
    """The expression as Prometheus gets it: several values as an alternative of escaped texts; a text as it is (all of them)."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name in built_in:
            return built_in[name]
        if name.isdigit():  # of label_replace; Grafana leaves what is no variable
            return match[0]
        found = values[name]
        if isinstance(found, str):
            return found
        escaped = [re.sub(r"[$^*{}\[\]'+?.()|]", r"\\\\\g<0>", one.replace("\\", "\\\\\\\\")) for one in found]
        return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"

    return _VARIABLE.sub(value, expr)
