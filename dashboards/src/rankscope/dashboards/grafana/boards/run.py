"""The board of a training run: steps, waits between ranks, cost of communication, and the hardware under each rank."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.panels.availability import RULES_LOADED
from rankscope.dashboards.grafana.boards.panels.board import choice_variable, new_board, run_page, target_variables
from rankscope.dashboards.grafana.boards.panels.canvas import Canvas, FigureRow
from rankscope.dashboards.grafana.boards.panels.marks import ANY_IS_BAD, NO_SIGNAL, none_is_zero, or_not_available
from rankscope.dashboards.grafana.boards.panels.promql import SCOPE
from rankscope.dashboards.grafana.boards.run_process import process, recorder
from rankscope.dashboards.grafana.boards.run_queries import INFO, REPORTING, RUN
from rankscope.dashboards.grafana.boards.run_ranks import hardware, stragglers
from rankscope.dashboards.grafana.boards.run_steps import communication, input_wait, steps

UID: Final = "rankscope-run"


def run() -> Canvas:
    """Build the board of a training run."""
    about = "A training run: steps, waiting, communication, input, throughput, what recording costs, and the GPUs under it."
    runs = choice_variable("run_id", "Run", f"label_values(rank_info{{{SCOPE}}}, run_id)", start_with_all=False)
    variables = [*target_variables("rank_info"), runs, choice_variable("rank", "Rank", f"label_values({INFO}, rank)")]
    canvas = new_board(UID, "Training run", about, *variables, alerts=', run_id=~"$run_id"', since="now-3h")
    canvas.no_value = NO_SIGNAL
    canvas.row("Now")
    canvas.figures(*_NOW)
    for part in (steps, stragglers, communication, input_wait, hardware, process, recorder):
        part(canvas)
    return canvas


def _figure(title: str, unit: str, expr: str, text: str, *, warn: float = 0, decimals: int | None = None) -> FigureRow:
    settings = {"thresholds": ((None, "green"), (warn, "orange"))} if warn else {}
    return title, unit, or_not_available(expr, REPORTING), settings | ({} if decimals is None else {"decimals": decimals}), text


_NOW: Final[tuple[FigureRow, ...]] = (
    RULES_LOADED,
    ("Ranks", "none", f"count({REPORTING})", {"links": (("Evidence", run_page("${run_id:percentencode}")),), "width": 3},
     "Ranks of the run that report."),
    ("Ranks silent", "none", none_is_zero(f"count(run_id_rank:rank_state:vanished{RUN} == 1)", REPORTING),
     {"thresholds": ANY_IS_BAD, "width": 3}, "Ranks that went while others go on."),
    ("Since the last step", "s", or_not_available(f"max(run_id:rank_step_age_seconds:min{RUN})", REPORTING),
     {"thresholds": ((None, "green"), (600, "red")), "width": 3}, "How long ago any rank that runs finished a step."),
    _figure("Step", "s", f"max(run_id:rank_step_seconds_per_step:rate5m{RUN})",
            "Wall time of a step over the last 5 minutes; of several runs the longest."),
    _figure("Samples", "cps", f"sum(run_id:rank_samples:rate5m{RUN})",
            "Samples per second of all ranks over 5 minutes, where the batch size is visible."),
    _figure("Tokens", "cps", f"sum(run_id:rank_tokens:rate5m{RUN})",
            "Tokens per second of all ranks over 5 minutes, where the script says."),
    _figure("Blocked", "percentunit", f"max(run_id:rank_blocked:ratio_rate5m{RUN})",
            "Share of the steps that ranks spend waiting for others.", warn=0.2, decimals=1),
    _figure("Worst straggler", "percentunit", f"max(run_id_rank:rank_own_excess:ratio_rate5m{RUN})",
            "Share of every step that the others wait for the slowest rank's own excess.", warn=0.1, decimals=1),
    _figure("Input wait", "percentunit", f"max(run_id:rank_input_wait:ratio_rate5m{RUN})",
            "Share of the steps spent waiting for data.", warn=0.1, decimals=1),
    _figure("Exposed communication", "percentunit", f"max(run_id:rank_exposed_communication:ratio_increase1h{RUN})",
            "Share of profiled steps in which nothing but communication went on.", warn=0.2, decimals=1),
    _figure("Overlap", "percentunit", f"min(run_id:rank_overlap:ratio_increase1h{RUN})",
            "Share of the communication that compute hid, in the profiled steps of the last hour.", decimals=1),
    _figure("Recorder", "percentunit", f"sum by (run_id) (run_id_part:rank_recorder:ratio_rate5m{RUN})",
            "Share of the steps that the recorder itself costs.", warn=0.01, decimals=2),
)  # fmt: skip
