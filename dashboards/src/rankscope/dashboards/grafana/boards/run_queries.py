"""What the board of a run asks: series of ranks with the id of their run and their host, and their sums."""

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
"""Lines of single ranks in a graph; the others are told by their median and their greatest."""
SILENT: Final = Query(
    'NaN * count by (run_id, state) (run_id_rank_state:rank_state:max{run_id=~"$run_id", state!="running"} == 1)',
    "ranks {{state}}",
    tells=True,
)
"""What became of the ranks of which there are no values: the third state, beside a value and a signal that does not exist."""


def most(expr: str, *, least: bool = False) -> str:
    """The ranks of each run that were greatest (or least) at any moment of the time shown, over all of that time.

    ``topk`` alone chooses anew at every moment, and a graph gets a line for whoever was chosen once.
    """
    choose, over = ("bottomk", "min") if least else ("topk", "max")
    chosen = f"{choose} by (run_id) ({MOST}, {over}_over_time(({expr})[{RANGE}:{RATE}] @ end()))"
    return f"{expr}\nand on (run_id, rank)\n{chosen}"


def with_host(expr: str) -> str:
    """Series of ranks with the host that the rank stepped on last."""
    return f"{expr}\n* on (run_id, rank) group_left (host) run_id_rank:rank_info:latest{RUN}"


def by_rank(metric: str, *, function: str = "rate") -> str:
    """A counter of each rank per second, with its run's id and its host, once however many exporters see it.

    Without a ``function`` it is a gauge, as it is.
    """
    series = f'{metric}{{{SCOPE}, rank=~"$rank"}}'
    rated = f"{function}({series}[{RATE}])" if function else series
    return f"max by (run_id, rank, host) ({rated}\n* on (job, instance, run, rank, slot) group_left (run_id, host) {INFO})"
