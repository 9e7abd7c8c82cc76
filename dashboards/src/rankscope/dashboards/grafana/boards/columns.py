"""Columns that several tables have, each with where a click on it leads."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.dialect import NATIVE, Dialect
from rankscope.dashboards.grafana.boards.frame import node_board, run_board, run_page
from rankscope.dashboards.grafana.boards.kinds import Column, Links


def to_node(dialect: Dialect = NATIVE) -> Links:
    """From a row of a table."""
    return (("Everything of this host", node_board(dialect)),)


def line_to_node(dialect: Dialect = NATIVE) -> Links:
    """From a line of a graph."""
    return (("Everything of this host", node_board(dialect, "${__field.labels.instance:percentencode}")),)


HOST: Final = Column(source="host", title="Host", links=to_node())
"""Its link needs ``instance`` or ``INSTANCE_OF_LINKS`` in the same table."""
INSTANCE: Final = Column(source="instance", title="Instance", links=to_node())
INSTANCE_OF_LINKS: Final = Column(source="instance", title="Instance", hidden=True)
RUN: Final = Column(source="run_id", title="Run", links=(("Training run", run_board()), ("Evidence", run_page())))
RANK: Final = Column(source="rank", title="Rank", links=(("Evidence", run_page(rank="${__data.fields.rank:percentencode}")),))
"""Its link needs the run in the same table."""
SIMULATED: Final = Column(source="simulated", title="Simulated")
