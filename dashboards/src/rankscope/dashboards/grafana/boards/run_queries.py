"""What the board of a run asks: series of ranks with the id of their run and their host, and their sums."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.dialect import RATE, SCOPE
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


def with_host(expr: str) -> str:
    """Series of ranks with the host that the rank stepped on last."""
    return f"{expr}\n* on (run_id, rank) group_left (host) run_id_rank:rank_info:latest{RUN}"


def by_rank(metric: str, *, function: str = "rate", window: str = RATE, **labels: str) -> str:
    """A counter of each rank per second, with its run's id and its host, once however many exporters see it."""
    more = "".join(f', {name}="{value}"' for name, value in labels.items())
    series = f'{metric}{{{SCOPE}, rank=~"$rank"{more}}}'
    rated = f"{function}({series}[{window}])" if function else series
    return f"max by (run_id, rank, host) ({rated}\n* on (job, instance, run, rank, slot) group_left (run_id, host) {INFO})"


def summed(metric: str, label: str, *, function: str = "rate", window: str = RATE) -> str:
    """The same added up over the ranks, by a label of the metric."""
    rated = f'{function}({metric}{{{SCOPE}, rank=~"$rank"}}[{window}])'
    joined = f"{rated}\n* on (job, instance, run, rank, slot) group_left (run_id, host) {INFO}"
    return f"sum by (run_id, {label}) (max by (run_id, rank, host, {label}) ({joined}))"
