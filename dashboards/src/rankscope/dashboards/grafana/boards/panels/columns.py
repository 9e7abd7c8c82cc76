"""Columns shared by several tables, with their links."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.panels.board import node_board, run_board, run_page
from rankscope.dashboards.grafana.boards.panels.kinds import BoardColumn, Links


def to_node() -> Links:
    """Return the link from a row of a table to the board of its host."""
    return (("Everything of this host", node_board()),)


def line_to_node() -> Links:
    """Return the link from a line of a graph to the board of its host."""
    return (("Everything of this host", node_board("${__field.labels.instance:percentencode}")),)


def labels(**titles: str) -> list[BoardColumn]:
    """Return plain columns of labels with these titles."""
    return [BoardColumn(label, title) for label, title in titles.items()]


HOST: Final = BoardColumn("host", "Host", links=to_node())
"""Column of the host; its link needs ``instance`` or ``INSTANCE_OF_LINKS`` in the same table."""
INSTANCE: Final = BoardColumn("instance", "Instance", links=to_node())
INSTANCE_OF_LINKS: Final = BoardColumn("instance", "Instance", hidden=True)
RUN: Final = BoardColumn("run_id", "Run", links=(("Training run", run_board()), ("Evidence", run_page())))
RANK: Final = BoardColumn("rank", "Rank", links=(("Evidence", run_page(rank="${__data.fields.rank:percentencode}")),))
"""Column of the rank; its link needs the run in the same table."""
SIMULATED: Final = BoardColumn("simulated", "Simulated")
