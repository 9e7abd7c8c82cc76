"""The generated boards that ship with rankscope."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True)
class Board:
    """A board and its JSON model."""

    uid: str
    title: str
    description: str
    model: dict[str, Any]

    @property
    def file_name(self) -> str:
        """Name of its file in a folder of boards."""
        return f"{self.uid}.json"

    @property
    def panels(self) -> int:
        """Number of panels, including those in collapsed rows."""
        top = self.model["panels"]
        return sum(panel["type"] != "row" for row in top for panel in (row, *row.get("panels", ())))


def shipped() -> list[Board]:
    """Return all boards, sorted by uid."""
    folder = files("rankscope.dashboards") / "grafana" / "json"
    models = [json.loads(file.read_text(encoding="utf-8")) for file in folder.iterdir() if file.name.endswith(".json")]
    boards = [Board(model["uid"], model["title"], model["description"], model) for model in models]
    return sorted(boards, key=lambda board: board.uid)
