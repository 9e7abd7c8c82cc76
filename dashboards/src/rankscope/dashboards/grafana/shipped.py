"""The generated boards that ship with rankscope."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, Literal, get_args

Compat = Literal["native", "dcgm"]
"""Source of a board's metrics: our exporter, or dcgm-exporter."""
COMPATS: Final = get_args(Compat)

_LEFT_OUT: Final = "left_out.json"


@dataclass(frozen=True, slots=True)
class Board:
    """A board; ``left_out``: panels of its native counterpart for which DCGM has no metric."""

    compat: Compat
    uid: str
    title: str
    description: str
    model: dict[str, Any]
    left_out: tuple[str, ...]

    @property
    def file_name(self) -> str:
        """Name of its file in a folder of boards."""
        return f"{self.uid}.json"

    @property
    def panels(self) -> int:
        """Number of panels, including those in collapsed rows."""
        top = self.model["panels"]
        return sum(panel["type"] != "row" for row in top for panel in (row, *row.get("panels", ())))


def shipped(compat: Compat) -> list[Board]:
    """Return all boards of this kind, sorted by uid."""
    return sorted(_read(compat), key=lambda board: board.uid)


def _read(compat: Compat) -> Iterator[Board]:
    folder = files("rankscope.dashboards") / "grafana" / "json" / compat
    found = {file.name: json.loads(file.read_text(encoding="utf-8")) for file in folder.iterdir() if file.name.endswith(".json")}
    left_out = found.pop(_LEFT_OUT, {})
    for model in found.values():
        uid = model["uid"]
        yield Board(compat, uid, model["title"], model["description"], model, tuple(left_out.get(uid, ())))
