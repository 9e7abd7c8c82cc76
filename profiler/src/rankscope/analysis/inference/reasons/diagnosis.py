"""Diagnosis of a straggler: the ranks, with their cause and cost, as evidence of steps or of windows shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from rankscope.analysis.causes import ExplainedCause, cause_of
from rankscope.analysis.inference.judging.moving_wait import MovingWait
from rankscope.analysis.inference.judging.slow_ranks import SlowRanks
from rankscope.analysis.inference.reasons.signals import Signals
from rankscope.analysis.result.analysis import Evidence, Pattern
from rankscope.analysis.result.text import OUTLIER_STEPS
from rankscope.runs.records import Phase


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Ranks to be named as stragglers, with cause, cost and evidence."""

    ranks: list[int]
    pattern: Pattern
    cause: ExplainedCause
    phase: Phase | None
    gain_us: float
    """Time that healing them saves, per step (or window)."""
    wait_us: float
    """Time that the others waited because of them, per step (or window) and victim."""
    step_us: float
    confidence: float
    """Confidence that these are the ranks."""
    hosts: list[str] = field(default_factory=list)
    """Hosts at fault as a whole; their slow ranks are among ``ranks``."""
    saves_us: tuple[float, float] | None = None
    """Interval of ``gain_us``; ``None``: not estimated."""
    cause_confidence: float | None = None
    """Confidence in the cause, if they are; ``None``: unknown."""
    group: str | None = None
    stage: int | None = None
    """Pipeline stage of the worst rank."""
    evidence: list[Evidence] = field(default_factory=list)
    at_hand: str = ""
    """Phrase for the steps observed, if there are only a few, such as "in the one step at hand"; else empty."""
    note: str = ""
    """Additional sentence for the summary; may be empty."""

    @property
    def saves(self) -> tuple[float, float] | None:
        """Interval of what healing saves, as shares of the step; ``None``: not estimated."""
        if self.saves_us is None or self.step_us <= 0:
            return None
        return self.saves_us[0] / self.step_us, self.saves_us[1] / self.step_us


def diagnosis_of(
    slow: SlowRanks,
    signals: Signals,
    *,
    wait_us: float,
    step_us: float,
    confidence: float,
    evidence: Sequence[Evidence] = (),
    factor: float = 1.0,
    unit: str = "step",
    last_of: str = "steps",
    group: str | None = None,
    stage: int | None = None,
) -> Diagnosis:
    """Describe slow ranks by the signals of the worst of them.

    ``evidence``: rows of the source, before those of the ranks and signals. ``factor``: times of ``slow`` to those of a ``unit``.
    ``last_of``: name of what the share of being last is of. Other arguments are fields of the diagnosis.
    """
    cost = [
        *evidence,
        Evidence(
            name="saved",
            value=slow.gain_us * factor,
            unit="us",
            detail=f"per {unit}, if it delayed the others no more than a typical rank does",
        ),
        Evidence(name="last", value=slow.last_share, unit="ratio", detail=f"of the {last_of}"),
    ]
    if slow.p_value is not None:
        cost.append(Evidence(name="p_value", value=slow.p_value, unit="probability", detail="permutation test"))
    return Diagnosis(
        ranks=slow.ranks,
        hosts=slow.hosts,
        pattern=slow.pattern,
        cause=cause_of(signals),
        phase=signals.phase,
        gain_us=slow.gain_us * factor,
        wait_us=wait_us,
        step_us=step_us,
        confidence=confidence,
        group=group,
        stage=stage,
        evidence=[*cost, *_evidence_of(signals)],
    )


def described_as_moving(diagnosis: Diagnosis, moving: MovingWait, wait_us: float) -> Diagnosis:
    """Return the diagnosis with what shows that the ranks wait for each other in turn, ``wait_us`` per step (or window)."""
    waited_for = list(moving.shares.items())[:_MOST_SHOWN]
    most = ", ".join(f"rank {rank} {share:.0%}" for rank, share in waited_for)
    others_clause = ", other ranks the rest" if len(moving.shares) > _MOST_SHOWN else ""
    evidence = [
        Evidence(name=OUTLIER_STEPS, value=moving.outlying, unit="ratio", detail="of the steps, in which the last rank is one"),
        *(
            Evidence(name="waited_for", value=share, unit="ratio", detail=f"of the waiting, for rank {rank}")
            for rank, share in waited_for
        ),
    ]
    return replace(
        diagnosis, wait_us=wait_us, evidence=[*diagnosis.evidence, *evidence], note=f"Of the waiting, {most}{others_clause}."
    )


_MOST_SHOWN: Final = 4
"""Number of ranks that are listed of those that ranks wait for in turn."""


def own_time_evidence(slow: SlowRanks, steps: int) -> list[Evidence]:
    """Return the evidence of ranks that are slow by their own times in ``steps`` steps."""
    detail = "over the median of its peers, in its slow steps"
    return [
        Evidence(name="own_time_excess", value=slow.excess_us, unit="us", detail=detail),
        Evidence(name="steps_judged", value=float(steps), unit="steps"),
    ]


def _evidence_of(signals: Signals) -> list[Evidence]:
    rows = [
        ("cpu_excess", signals.cpu_us, "us"),
        ("run_queue_excess", signals.run_queue_us, "us"),
        ("off_cpu_excess", signals.off_cpu_us if signals.sleeps else None, "us"),
        ("gc_excess", signals.gc_us, "us"),
        ("device_busy_excess", signals.device_busy_us, "us"),
        ("work_excess", signals.work, "ratio"),
        ("loaded_work_excess", signals.loaded_work, "ratio"),
        ("profiler_excess", signals.profiler_us or None, "us"),
        *((f"phase_excess.{phase}", us, "us") for phase, us in signals.phases_us.items()),
        *((f"{activity}_excess", us, "us") for activity, us in signals.activities_us.items()),
    ]
    detail = "over the median of its peers"
    return [Evidence(name=name, value=value, unit=unit, detail=detail) for name, value, unit in rows if value is not None]
