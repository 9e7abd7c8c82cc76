"""The board of a training run: steps, waits between ranks, cost of communication, and the hardware under each rank."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.answers import rules_loaded
from rankscope.dashboards.grafana.boards.canvas import Canvas
from rankscope.dashboards.grafana.boards.dialect import NATIVE, SCOPE
from rankscope.dashboards.grafana.boards.frame import chosen, frame, places, run_page
from rankscope.dashboards.grafana.boards.marks import (
    ANY_IS_BAD,
    NO_SIGNAL,
    none_is_zero,
    or_not_available,
)
from rankscope.dashboards.grafana.boards.run_process import process, recorder
from rankscope.dashboards.grafana.boards.run_queries import INFO, REPORTING, RUN
from rankscope.dashboards.grafana.boards.run_ranks import hardware, stragglers
from rankscope.dashboards.grafana.boards.run_steps import communication, input_wait, steps

UID: Final = "rankscope-run"


def run() -> Canvas:
    """Build the board of a training run."""
    about = "A training run: steps, waiting, communication, input, throughput, what recording costs, and the GPUs under it."
    canvas = Canvas(frame(UID, "Training run", about, dialect=NATIVE, alerts=', run_id=~"$run_id"', since="now-3h"), NO_SIGNAL)
    for variable in places("rank_info"):
        canvas.board.with_variable(variable)
    canvas.board.with_variable(chosen("run_id", "Run", f"label_values(rank_info{{{SCOPE}}}, run_id)", start_with_all=False))
    canvas.board.with_variable(chosen("rank", "Rank", f"label_values({INFO}, rank)"))
    _now(canvas)
    steps(canvas)
    stragglers(canvas)
    communication(canvas)
    input_wait(canvas)
    hardware(canvas)
    process(canvas)
    recorder(canvas)
    return canvas


def _ratio(canvas: Canvas, title: str, description: str, name: str, *, warn: float, more: str = "") -> None:
    expr = or_not_available(f'max({name}{{run_id=~"$run_id"{more}}})', REPORTING)
    canvas.figure(title, description, "percentunit", expr, thresholds=((None, "green"), (warn, "orange")), decimals=1)


def _now(canvas: Canvas) -> None:
    canvas.row("Now")
    rules_loaded(canvas)
    canvas.figure(
        "Ranks",
        "Ranks of the run that report.",
        "none",
        f"count({REPORTING})",
        links=(("Evidence", run_page("${run_id:percentencode}")),),
        width=3,
    )
    canvas.figure(
        "Ranks silent",
        "Ranks that went while others go on.",
        "none",
        none_is_zero(f"count(run_id_rank:rank_state:vanished{RUN} == 1)", REPORTING),
        thresholds=ANY_IS_BAD,
        width=3,
    )
    canvas.figure(
        "Since the last step",
        "How long ago any rank that runs finished a step.",
        "s",
        or_not_available(f"max(run_id:rank_step_age_seconds:min{RUN})", REPORTING),
        thresholds=((None, "green"), (600, "red")),
        width=3,
    )
    canvas.figure(
        "Step",
        "Wall time of a step over the last 5 minutes; of several runs the longest.",
        "s",
        or_not_available(f"max(run_id:rank_step_seconds_per_step:rate5m{RUN})", REPORTING),
    )
    canvas.figure(
        "Samples",
        "Samples per second of all ranks over 5 minutes, where the batch size is visible.",
        "cps",
        or_not_available(f"sum(run_id:rank_samples:rate5m{RUN})", REPORTING),
    )
    canvas.figure(
        "Tokens",
        "Tokens per second of all ranks over 5 minutes, where the script says.",
        "cps",
        or_not_available(f"sum(run_id:rank_tokens:rate5m{RUN})", REPORTING),
    )
    _ratio(
        canvas, "Blocked", "Share of the steps that ranks spend waiting for others.", "run_id:rank_blocked:ratio_rate5m", warn=0.2
    )
    _ratio(
        canvas,
        "Worst straggler",
        "Share of every step that the others wait for the slowest rank's own excess.",
        "run_id_rank:rank_own_excess:ratio_rate5m",
        warn=0.1,
    )
    _ratio(canvas, "Input wait", "Share of the steps spent waiting for data.", "run_id:rank_input_wait:ratio_rate5m", warn=0.1)
    _ratio(
        canvas,
        "Exposed communication",
        "Share of profiled steps in which nothing but communication went on.",
        "run_id:rank_exposed_communication:ratio_increase1h",
        warn=0.2,
    )
    canvas.figure(
        "Overlap",
        "Share of the communication that compute hid, in the profiled steps of the last hour.",
        "percentunit",
        or_not_available(f"min(run_id:rank_overlap:ratio_increase1h{RUN})", REPORTING),
        decimals=1,
    )
    canvas.figure(
        "Recorder",
        "Share of the steps that the recorder itself costs.",
        "percentunit",
        or_not_available(f"sum by (run_id) (run_id_part:rank_recorder:ratio_rate5m{RUN})", REPORTING),
        thresholds=((None, "green"), (0.01, "orange")),
        decimals=2,
    )
