"""Played step times of any kind of graph, and the answer computed from them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.costs.rare_steps import MATTERS
from rankscope.analysis.inference.judging.slow_ranks import MINIMUM_EFFECT
from rankscope.analysis.result.analysis import Cost, gpu_time_loss
from rankscope.analysis.result.text import counted, hours_text
from rankscope.analysis.whatif.graph import Times
from rankscope.analysis.whatif.whatif_result import (
    CauseEffect,
    Effect,
    HostEffect,
    OpEffect,
    RankEffect,
    ReplicaEffect,
    StageEffect,
    StepTimes,
    WhatIf,
    WhatIfSource,
)
from rankscope.base.text import format_duration

SLOWEST_PERCENT: Final = 3
"""Percentage of the ranks, rounded up, that ``m_worker`` makes ideal; as in the paper."""

MAX_RANKS: Final = 64
"""Maximum ranks in ``by_rank``."""

TOO_LITTLE: Final = "Not enough data for a what-if: "
"""Beginning of the summary of an answer without enough data."""

_LEAST_LOSS: Final = 1e-3
"""Fraction of the ideal step up to which a loss is too small to be divided into shares."""

_NEGLIGIBLE_SHARE: Final = 0.05
"""Share of the loss below which the summary calls a gain negligible."""

_DOMINANT_SHARE: Final = 0.75
"""Share of the loss from which the slowest ranks, or the last stage, stand out, however few ranks there are."""

_MOST_GRAPH_ERROR: Final = 0.05
"""Relative error of the graph above which the answer has a warning; the paper excludes such jobs."""


_E = TypeVar("_E", bound=Effect)


@dataclass(frozen=True, slots=True)
class JobPart:
    """One part of the job and its step times [steps]. ``key``: the further fields of its ``Effect``."""

    key: dict[str, Any]
    only: Times
    """Step times with this part as it was and all else ideal."""
    without: Times
    """Step times with this part ideal and all else as it was."""
    lost: Times | None = None
    """Time of this part in the loss, which all parts of a kind add up to; ``None`` where they do not."""


def parts(keys: Iterable[dict[str, Any]], played: Iterator[Times]) -> list[JobPart]:
    """Return the parts of ``keys`` from played step times: for each part first ``only``, then ``without``."""
    return [JobPart(key, only=next(played), without=next(played)) for key in keys]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Step times of one job, in a unit of ``seconds`` seconds. Arrays are [steps]."""

    steps: NDArray[np.int64]
    measured: Times
    actual: Times
    ideal: Times
    ranks: Sequence[JobPart]
    slowest: list[int]
    without_slowest: Times
    savings_of: Literal["verdict", "graph"] = "graph"
    """What ranks, hosts and the slowest ranks save, see ``WhatIf``."""
    hosts: Sequence[JobPart] = ()
    replicas: Sequence[JobPart] = ()
    stages: Sequence[JobPart] = ()
    ops: Sequence[JobPart] = ()
    causes: Sequence[JobPart] = ()
    without_last_stage: Times | None = None
    seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class CostTerms:
    """Parameters for counting hours and cost."""

    accelerated: bool
    """True if ranks run on accelerators, so that lost time is GPU time."""
    world_size: int
    trained_steps: int | None = None
    """Number of steps with which hours are counted; ``None``: the played ones."""
    price_per_gpu_hour: float | None = None
    currency: str = "USD"
    per_step: bool = False
    """True if the answer includes the figures of every step."""
    cycle: int | None = None
    """Number of the cycle of the profiler's schedule, see ``engine.analyze``; for traces."""
    communication_pattern: re.Pattern[str] | None = None
    """Pattern of names of kernels of traces that are communication, too."""


def slowest_count(ranks: int) -> int:
    """Return the number of ranks that are the slowest 3 %, rounded up."""
    return -(-ranks * SLOWEST_PERCENT // 100)


def insufficient(source: WhatIfSource, missing: str) -> WhatIf:
    """Return an answer without results; ``missing`` is the reason for its summary."""
    return WhatIf(
        status="insufficient_data",
        source=msgspec.structs.replace(source, evidence=None),
        summary=f"{TOO_LITTLE}{missing}.",
    )


def answer(outcome: Outcome, source: WhatIfSource, terms: CostTerms) -> WhatIf:
    """Compute the answer from played step times."""
    converter = _EffectConverter(outcome, terms)
    actual, ideal, measured = converter.actual, converter.ideal, float(outcome.measured.mean()) * outcome.seconds
    if ideal <= 0:
        return insufficient(source, "the operations of the ideal step take no time at all")
    lost = actual - ideal
    discrepancy = measured / actual
    warnings = list(source.warnings)
    if abs(discrepancy - 1) > _MOST_GRAPH_ERROR:
        warnings.append(f"the graph explains the measured time badly: {measured:.3g} s were measured, it plays {actual:.3g} s")
    last = outcome.without_last_stage
    hours, cost = converter.loss(lost)
    result = WhatIf(
        status="ok",
        source=source,
        summary="",
        measured_step_seconds=measured,
        step_seconds=actual,
        ideal_step_seconds=ideal,
        discrepancy=discrepancy,
        slowdown=actual / ideal,
        m_worker=converter.share(outcome.without_slowest),
        m_stage=None if last is None else converter.share(last),
        slowest_ranks=outcome.slowest,
        saved_seconds=lost,
        gpu_hours_lost=hours,
        cost=cost,
        savings_of=outcome.savings_of,
        by_rank=converter.effects(outcome.ranks, RankEffect),
        by_host=converter.effects(outcome.hosts, HostEffect),
        by_dp_rank=converter.effects(outcome.replicas, ReplicaEffect),
        by_stage=converter.effects(outcome.stages, StageEffect),
        by_op=converter.effects(outcome.ops, OpEffect),
        by_cause=sorted(converter.effects(outcome.causes, CauseEffect), key=lambda effect: -effect.lost_seconds),
        steps=_steps(outcome) if terms.per_step else None,
    )
    if (unseen := loss_beyond_graph(result)) is not None:
        warnings.append(
            f"the graph loses {_time(lost)} per step to all stragglers, less than {_name(unseen)} alone costs by its own times: "
            "ranks also wait outside of the collectives in it"
        )
    source = msgspec.structs.replace(source, warnings=warnings)
    return msgspec.structs.replace(result, source=source, summary=_sentence(result, actual, ideal))


def loss_beyond_graph(result: WhatIf) -> RankEffect | HostEffect | None:
    """Return the rank or host that costs more by its own times than the graph loses to all stragglers; ``None`` without any."""
    rows: list[RankEffect | HostEffect] = [] if result.savings_of == "graph" else [*result.by_rank, *result.by_host]
    worst = max(rows, key=lambda row: row.saved_seconds, default=None)
    if worst is None or result.step_seconds is None or result.saved_seconds is None:
        return None
    return worst if _is_beyond(worst.saved_seconds, result.saved_seconds, result.step_seconds) else None


def _is_beyond(saved: float, lost: float, step: float) -> bool:
    return saved > (1 + _MOST_GRAPH_ERROR) * lost and saved >= MINIMUM_EFFECT * step


def _name(row: RankEffect | HostEffect) -> str:
    return f"host {row.host}" if isinstance(row, HostEffect) else f"rank {row.rank}"


class _EffectConverter:
    """Converter of played step times to effects in seconds, hours and money."""

    def __init__(self, outcome: Outcome, terms: CostTerms) -> None:
        self._outcome = outcome
        self._terms = terms
        self.actual = self._mean(outcome.actual)
        self.ideal = self._mean(outcome.ideal)
        units = [] if outcome.savings_of == "graph" else [*outcome.ranks, *outcome.hosts]
        least = min((self._mean(part.without) for part in units), default=self.actual)
        self._shows_loss = not _is_beyond(self.actual - least, self.actual - self.ideal, self.actual)

    def _mean(self, times: Times) -> float:
        return float(times.mean()) * self._outcome.seconds

    def share(self, without: Times) -> float | None:
        """Return the share of the loss that is gone with step times ``without``; ``None`` if hardly any time is lost."""
        return self._of_loss(self.actual - self._mean(without))

    def _of_loss(self, seconds: float) -> float | None:
        lost = self.actual - self.ideal
        return seconds / lost if self._shows_loss and lost > _LEAST_LOSS * self.ideal else None

    def loss(self, seconds: float) -> tuple[float | None, Cost | None]:
        """Return the GPU-hours and cost of losing ``seconds`` per step; ``None`` where not counted."""
        terms = self._terms
        steps = len(self._outcome.steps) if terms.trained_steps is None else terms.trained_steps
        hours = seconds * steps * terms.world_size / 3600
        return gpu_time_loss(hours, accelerated=terms.accelerated, price=terms.price_per_gpu_hour, currency=terms.currency)

    def effects(self, parts: Sequence[JobPart], kind: type[_E]) -> list[_E]:
        """Return the effects of ``parts``, the largest slowdown first."""
        largest_first = [self._effect(part, kind) for part in parts]
        return sorted(largest_first, key=lambda effect: -effect.slowdown)

    def _effect(self, part: JobPart, kind: type[_E]) -> _E:
        without = self._mean(part.without)
        hours, cost = self.loss(self.actual - without)
        key = part.key
        if part.lost is not None:
            lost = self._mean(part.lost)
            key = {**key, "lost_seconds": lost, "lost_share": self._of_loss(lost)}
        per_step = None
        if self._terms.per_step:
            per_step = [_ratio(*times) for times in zip(part.only.tolist(), self._outcome.ideal.tolist(), strict=True)]
        return kind(
            **key,
            slowdown=self._mean(part.only) / self.ideal,
            without_step_seconds=without,
            saved_seconds=self.actual - without,
            share=self.share(part.without),
            gpu_hours_lost=hours,
            cost=cost,
            slowdown_per_step=per_step,
        )


def _steps(outcome: Outcome) -> list[StepTimes]:
    scale = outcome.seconds
    return [
        StepTimes(
            step=int(step),
            measured_seconds=float(measured) * scale,
            step_seconds=float(actual) * scale,
            ideal_seconds=float(ideal) * scale,
            slowdown=_ratio(actual, ideal),
        )
        for step, measured, actual, ideal in zip(outcome.steps, outcome.measured, outcome.actual, outcome.ideal, strict=True)
    ]


def _ratio(time: float, ideal: float) -> float | None:
    return float(time / ideal) if ideal > 0 else None


def _sentence(result: WhatIf, actual: float, ideal: float) -> str:
    source = result.source
    step = "a typical step" if source.evidence == "steps" else "a step"
    rare = "" if (left_out := rare_steps_text(source)) is None else f" {left_out[0].upper()}{left_out[1:]}."
    if (unseen := loss_beyond_graph(result)) is not None:
        without = _time(unseen.without_step_seconds)
        return f"Without the slowness of {_name(unseen)} {step} would take {without}; it takes {_time(actual)}.{rare}"
    if (share := result.m_worker) is None:
        return f"Without any straggler {step} would hardly be shorter than the {_time(actual)} it takes now.{rare}"
    return _of_slowest(result, actual, ideal, step, share) + rare


def rare_steps_text(source: WhatIfSource) -> str | None:
    """Return the clause about the rare steps that are not in the graph, and what they cost; ``None`` without any."""
    if not source.rare_steps:
        return None
    share = source.rare_share or 0.0
    hint = ": see rankscope analyze" if share >= MATTERS else ""
    cost = f"{share:.0%}" if share >= _LEAST_SHARE else f"less than {_LEAST_SHARE:.0%}"
    return f"{counted(source.rare_steps, 'rare step')} left out, which cost {cost} of the run's time{hint}"


_LEAST_SHARE: Final = 0.01
"""Least share that is shown as a number."""


def hosts_slow_together(result: WhatIf) -> list[HostEffect]:
    """Return the hosts that gain more than their ranks do one by one: of equally slow ranks, none saves anything alone."""
    saved = {row.rank: max(row.saved_seconds, 0.0) for row in result.by_rank}
    return [
        host
        for host in result.by_host
        if host.saved_seconds > _TOGETHER * sum(saved.get(rank, 0.0) for rank in host.ranks)
        and (host.share or 0.0) >= _LEAST_SHARE
    ]


_TOGETHER: Final = 1.25
"""Gain of a host, as a multiple of the sum of its ranks' gains, from which its ranks are slow together."""


def _of_slowest(result: WhatIf, actual: float, ideal: float, step: str, share: float) -> str:
    """Return what the stragglers cost, and the ``share`` of it that the slowest ranks explain."""
    text = f"Without any straggler {step} would take {_time(ideal)}; it takes {_time(actual)}, {actual / ideal:.2f} times as long"
    slowest, source = result.slowest_ranks, result.source
    if result.gpu_hours_lost is not None:
        steps = source.steps if source.trained_steps is None else source.trained_steps
        text += f": {hours_text(result.gpu_hours_lost)} GPU-hours lost in {counted(steps, 'step')}"
    subject = f"rank {slowest[0]}" if len(slowest) == 1 else f"the {len(slowest)} slowest ranks"
    gained = "next to nothing" if share < _NEGLIGIBLE_SHARE else f"{min(share, 1.0):.0%}"
    if (result.m_stage or 0.0) >= max(_DOMINANT_SHARE, share):
        return f"{text}. The last pipeline stage explains {min(result.m_stage or 0.0, 1.0):.0%} of that."
    if (host := max(hosts_slow_together(result), key=lambda host: host.saved_seconds, default=None)) is not None:
        host_share = host.share or 0.0
        if host_share >= max(share, 2 * len(host.ranks) / source.ranks):
            saves = f"{_time(host.without_step_seconds)}, which is {min(host_share, 1.0):.0%} of the loss"
            return f"{text}. Without the slowness of host {host.host} alone it would take {saves}."
    # If each of R ranks is the last equally often, making one ideal gains about 1/R.
    if share >= min(2 * len(slowest) / source.ranks, _DOMINANT_SHARE):
        return f"{text}. Fixing {subject} alone would recover {gained} of that."
    subject = f"rank {slowest[0]}, the slowest," if len(slowest) == 1 else subject
    return f"{text}. No rank explains that alone: fixing {subject} would recover {gained} of it."


def _time(seconds: float) -> str:
    return format_duration(seconds * 1e6)
