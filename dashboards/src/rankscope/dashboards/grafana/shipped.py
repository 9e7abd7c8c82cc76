"""The boards that come with rankscope, as they were generated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, Literal, get_args

Compat = Literal["native", "dcgm"]
"""Whose metrics: of our exporter, or of dcgm-exporter."""
COMPATS: Final = get_args(Compat)

_LEFT_OUT: Final = "left_out.json"


@dataclass(frozen=True, slots=True)
class Board:
    """A board; ``left_out`` are the panels of its native sibling for which DCGM's names have nothing."""

    compat: Compat
    uid: str
    title: str
    description: str
    model: dict[str, Any]
    left_out: tuple[str, ...]

    @property
    def file_name(self) -> str:
        """What it is called in a folder of boards."""
        return f"{self.uid}.json"

    @property
    def panels(self) -> int:
        """How many there are, those in closed rows included."""
        top = self.model["panels"]
        return sum(panel["type"] != "row" for row in top for panel in (row, *row.get("panels", ())))


def shipped(compat: Compat) -> list[Board]:
    """All boards of this kind, by uid."""
    return sorted(_read(compat), key=lambda board: board.uid)


def _read(compat: Compat) -> Iterator[Board]:
    folder = files("rankscope.dashboards") / "grafana" / "json" / compat
    found = {file.name: json.loads(file.read_text(encoding="utf-8")) for file in folder.iterdir() if file.name.endswith(".json")}
    left_out = found.pop(_LEFT_OUT, {})
    for model in found.values():
        uid = model["uid"]
        yield Board(compat, uid, model["title"], model["description"], model, tuple(left_out.get(uid, ())))
