"""Queries of the board of a run: series of ranks with run id and host, and their sums."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.dialect import RANGE, RATE, SCOPE
from rankscope.dashboards.grafana.boards.frame import run_page
from rankscope.dashboards.grafana.boards.kinds import Query

RUN: Final = '{run_id=~"$run_id"}'
RANK: Final = '{run_id=~"$run_id", rank=~"$rank"}'
INFO: Final = f'rank_info{{{SCOPE}, run_id=~"$run_id"}}'
REPORTING: Final = 'run_id_rank_state:rank_state:max{run_id=~"$run_id", state!="silent"} == 1'
LEGEND: Final = "rank {{rank}} {{host}}"
EVIDENCE: Final = (("Evidence", run_page("${__field.labels.run_id:percentencode}", "${__field.labels.rank:percentencode}")),)
MOST: Final = 8
"""Most lines of single ranks in a graph; the other ranks appear only in aggregates."""
SILENT: Final = Query(
    'NaN * count by (run_id, state) (run_id_rank_state:rank_state:max{run_id=~"$run_id", state!="running"} == 1)',
    "ranks {{state}}",
    tells=True,
)
"""State of ranks without values, for the legend: a third case besides a value and a missing signal."""


def most(expr: str, *, least: bool = False) -> str:
    """Return the series of each run's ``MOST`` ranks by their greatest (or least) value in the shown time.

    ``topk`` alone chooses again at every evaluation, so that a graph gets a line for every rank that was chosen once.
    """
    choose, over = ("bottomk", "min") if least else ("topk", "max")
    chosen = f"{choose} by (run_id) ({MOST}, {over}_over_time(({expr})[{RANGE}:{RATE}] @ end()))"
    return f"{expr}\nand on (run_id, rank)\n{chosen}"


def with_host(expr: str) -> str:
    """Return series of ranks with the host of the rank's last step."""
    return f"{expr}\n* on (run_id, rank) group_left (host) run_id_rank:rank_info:latest{RUN}"


def by_rank(metric: str, *, function: str = "rate") -> str:
    """Return the rate of a counter per rank and second, with run id and host, once even if several exporters report it.

    With an empty ``function`` the metric is a gauge and is returned unchanged.
    """
    series = f'{metric}{{{SCOPE}, rank=~"$rank"}}'
    rated = f"{function}({series}[{RATE}])" if function else series
    return f"max by (run_id, rank, host) ({rated}\n* on (job, instance, run, rank, slot) group_left (run_id, host) {INFO})"
