"""Queries of the board of a run: series of ranks with run id and host, and their sums."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.panels.board import run_page
from rankscope.dashboards.grafana.boards.panels.kinds import Query
from rankscope.dashboards.grafana.boards.panels.promql import RANGE, RATE, RULES, SCOPE

RUN: Final = '{run_id=~"$run_id"}'
RANK: Final = '{run_id=~"$run_id", rank=~"$rank"}'
INFO: Final = f'rank_info{{{SCOPE}, run_id=~"$run_id"}}'
REPORTING: Final = 'run_id_rank_state:rank_state:max{run_id=~"$run_id", state!="silent"} == 1'
LEGEND: Final = "rank {{rank}} {{host}}"
EVIDENCE: Final = (("Evidence", run_page("${__field.labels.run_id:percentencode}", "${__field.labels.rank:percentencode}")),)
MOST: Final = 8
"""Most lines of single ranks in a graph; the other ranks appear only in aggregates."""
SILENT: Final = Query(
    'NaN * (\n  run_id_state:rank_state:count{run_id=~"$run_id", state!="running"}\nor\n  '
    f'label_replace(absent({RULES} @ end()), "state", "unknown: no recording rules (rankscope alerts rules export)", "", "")\n)',
    "ranks {{state}}",
    legend_only=True,
)
"""State of ranks without values, for the legend: a third case besides a value and a missing signal."""


def most(expr: str, *, least: bool = False) -> str:
    """Return the series of each run's ``MOST`` ranks by their greatest (or least) value in the shown time, with their hosts.

    ``topk`` alone chooses again at every evaluation, so that a graph gets a line for every rank that was chosen once. The host is
    joined last, for the chosen ranks only: of 512 ranks that takes a fifth of the time.
    """
    choose, over = ("bottomk", "min") if least else ("topk", "max")
    chosen = f"{choose} by (run_id) ({MOST}, {over}_over_time(({expr})[{RANGE}:{RATE}] @ end()))"
    return f"({expr}\nand on (run_id, rank)\n{chosen})\n* on (run_id, rank) group_left (host) run_id_rank:rank_info:latest{RUN}"


def most_published(metric: str, *, rated: bool) -> str:
    """Return ``most`` of a metric as ranks publish it, or of its rate; once even if several exporters report a rank."""
    series = f'{metric}{{{SCOPE}, rank=~"$rank"}}'
    series = f"rate({series}[{RATE}])" if rated else series
    on = "on (job, instance, run, rank, slot)"
    over_time = f"max_over_time({series}[{RANGE}:{RATE}] @ end()) * {on} group_left (run_id) ({INFO} @ end())"
    chosen = f"topk by (run_id) ({MOST}, max by (run_id, run, rank) ({over_time}))"
    return f"max by (run_id, rank, host) (\n({series}\nand on (run, rank)\n{chosen})\n* {on} group_left (run_id, host) {INFO})"
