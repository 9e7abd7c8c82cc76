"""Write the boards as JSON into ``json``: ``python -m rankscope.dashboards.grafana.boards.generate`` (``make docs`` runs it)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from rankscope.dashboards.grafana.boards.alerts import alerts
from rankscope.dashboards.grafana.boards.cluster import cluster
from rankscope.dashboards.grafana.boards.collectives import collectives
from rankscope.dashboards.grafana.boards.node import node
from rankscope.dashboards.grafana.boards.panels.canvas import Canvas
from rankscope.dashboards.grafana.boards.run import run
from rankscope.dashboards.grafana.export import board_text

FOLDER: Final = Path(__file__).parent.parent / "json"


def texts() -> dict[str, str]:
    """Return the content of each file in ``json``, by its name."""
    return {f"{canvas.board.build().uid}.json": _board(canvas) for canvas in (cluster(), node(), run(), collectives(), alerts())}


def _board(canvas: Canvas) -> str:
    board = json.loads(json.dumps(canvas.done().build(), cls=JSONEncoder))
    for variable in board["templating"]["list"]:
        for only_of_intervals in ("auto", "auto_count", "auto_min"):
            variable.pop(only_of_intervals, None)
    for query in board["annotations"]["list"]:
        # Fields of the Prometheus data source, which the library does not support.
        query |= {"titleFormat": "{{alertname}}", "tagKeys": "severity,host,instance,run_id,rank", "step": "60s"}
    return board_text(board)


def main() -> None:
    """Write all boards, and remove files of boards that no longer exist."""
    board_texts = texts()
    for path in FOLDER.glob("*.json"):
        if path.name not in board_texts:
            path.unlink()
    for name, text in board_texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
