"""Limit of the step when no rank stands out: the parts of its waterfall, and the share from which each part is a limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, get_args

from rankscope.analysis.collectives.figures import Figure, Figures
from rankscope.analysis.collectives.traffic.payload import PAYLOADS
from rankscope.analysis.costs.cost_figures import derived, figures_of_costs
from rankscope.analysis.costs.waterfall import Costs, InnerName
from rankscope.analysis.result.analysis import Kind
from rankscope.analysis.result.cause import Cause
from rankscope.analysis.result.costs import MEANING
from rankscope.runs.records import Phase


@dataclass(frozen=True, slots=True)
class LimitRow:
    """Row of a table of limits: kind, figure that indicates it, smallest value of the figure, and wording. Cause, phase and
    explanation are set where the figure determines them.
    """

    kind: Kind
    figure: str
    at_least: float
    wording: str
    cause: Cause | None = None
    phase: Phase | None = None
    explained_by: str | None = None


HOST_OR_INPUT: Final = "host_or_input"
"""Explanation of an idle device where it is not known whether the host or the input keeps it waiting."""

_HOST: Final = 0.35
"""Share of the step from which the host limits it."""

_ACTIVITIES: Final[tuple[LimitRow, ...]] = (
    LimitRow("host_bound", "share.evaluation", _HOST, "of the step goes into evaluation", "evaluation"),
    LimitRow("host_bound", "share.checkpoint", _HOST, "of the step goes into writing checkpoints", "checkpoint"),
)

LIMITS: Final[tuple[LimitRow, ...]] = (
    LimitRow("input_bound", "share.input", 0.25, "of the step goes into waiting for the data loader"),
    LimitRow(
        "communication_bound", "share.exposed_communication", 0.30, "of the step goes into communication that no compute hides"
    ),
    LimitRow("pipeline_bubble", "share.pipeline_bubble", 0.25, "of the step the pipeline's ranks wait for each other"),
    LimitRow("host_bound", "share.host", _HOST, "of the step the device has nothing to do: the host does not keep it busy"),
    LimitRow(
        "host_bound",
        "share.idle_unexplained",
        _HOST,
        "of the step the device has nothing to do: the host, or the input it waits for, does not keep it busy",
        explained_by=HOST_OR_INPUT,
    ),
    *_ACTIVITIES,
    LimitRow("compute_bound", "share.all_compute", 0.60, "of the step goes into compute"),
)
"""Limits of the step. Their figures are shares of the step without common parts, but ``share.host`` includes activities."""

_NEITHER: Final = "of the step goes neither into the model's compute nor into waiting for data or other ranks, but chiefly into "

HOST_OF_CPU: Final[tuple[LimitRow, ...]] = (
    LimitRow("host_bound", "share.between_steps", 0.0, f"{_NEITHER}host code between the steps", "host", "between_steps"),
    LimitRow("host_bound", "share.stalled", 0.0, f"{_NEITHER}stalls of host code inside the step", "host"),
    LimitRow("host_bound", "share.run_queue", 0.0, f"{_NEITHER}queueing for CPUs", "host", explained_by="cpu_contention"),
    LimitRow("host_bound", "share.gc", 0.0, f"{_NEITHER}garbage collection", "gc"),
)
"""Parts of ``share.host`` where ranks run on CPUs. The row with the largest share replaces the row of ``share.host``."""

_BESIDES: Final = {
    **{f"share.{name}": name.replace("_", " ") for name in MEANING if name not in ("ideal", "compute", "unexplained")},
    "share.idle_unexplained": "idle time of the device",
}
"""Name in words of every share that is not compute."""

SHOWN: Final = tuple(f"share.{name}" for name in (*(name for name in MEANING if name != "unexplained"), *get_args(InnerName)))
"""Shares that a finding about a limit shows as its evidence."""


def shares_of(costs: Costs | None, transfers: Figures | None = None) -> Figures:
    """Return the figures that limits are looked up in: those of the waterfall, and those derived from them. May be empty.

    ``transfers``: figures of collectives, which are added if the waterfall is known. They decide what to do about a limit.
    """
    shares = derived(figures_of_costs(costs))
    return {**(transfers or {}), **shares} if shares else {}


def exposed_transfer(figures: Figures) -> str | None:
    """Return what most of the exposed communication transfers, as a reason of the table of advice; ``None``: no kind dominates.

    Gradients count only where parameters are not sharded, because hybrid sharding reduces gradients differently.
    """
    most = next((name for name in PAYLOADS if (figure := figures.get(f"exposed.{name}")) and figure.value >= _MOST), None)
    sharding = figures.get("collectives.sharding_share")
    return None if most == "gradients" and (sharding is None or sharding.value >= _SHARDED) else most


_MOST: Final = 0.5
_SHARDED: Final = 0.1


def limit_of(shares: Figures) -> tuple[LimitRow, float] | None:
    """Return the row with the largest share among those that reach their limit, and that share; ``None`` if none does."""
    limits = [(row, shares[row.figure].value) for row in LIMITS if row.figure in shares]
    reached = [(row, share) for row, share in limits if share >= row.at_least]
    largest = max(reached, key=lambda entry: entry[1], default=None)
    if largest is None or largest[0].figure not in ("share.host", "share.idle_unexplained"):
        return largest
    activity = max(
        ((row, shares[row.figure].value) for row in _ACTIVITIES if row.figure in shares), key=lambda entry: entry[1], default=None
    )
    if activity is not None and activity[1] >= _MOST * largest[1]:
        return activity
    parts = [(row, shares[row.figure].value) for row in HOST_OF_CPU if row.figure in shares]
    # With an accelerator, records do not show what the host does inside the step.
    return (max(parts, key=lambda entry: entry[1])[0], largest[1]) if "share.stalled" in shares else largest


def largest_besides_compute(shares: Figures) -> tuple[str, Figure] | None:
    """Return the name in words and the share of the largest known part besides compute; ``None`` if no known part is above 0."""
    largest = max((name for name in _BESIDES if name in shares), key=lambda name: shares[name].value, default=None)
    return None if largest is None or shares[largest].value <= 0 else (_BESIDES[largest], shares[largest])


def unknown_share(shares: Figures) -> float:
    """Return the share of the step that is neither compute nor any other known part."""
    return max(0.0, 1 - sum(shares[name].value for name in (*_BESIDES, "share.all_compute") if name in shares))
