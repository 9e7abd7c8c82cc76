"""The result of a comparison: the JSON of ``rankscope compare --format json`` (schema ``rankscope.compare/1``).

What is undefined is ``None`` (JSON ``null``), never 0. Fields are only ever added. B is compared with A.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rankscope.analysis.result import Cost
from rankscope.runs.records import Phase

COMPARE_SCHEMA: Final = "rankscope.compare/1"

Mode = Literal["pairs", "before_after", "scaling"]

Outcome = Literal["worse", "better", "mixed", "same", "undecided", "insufficient_data", "untested"]
"""``worse``, ``better``: real, and as large as what matters. ``mixed``: the typical step one way, the average step the other.
``same``: real or not, it is less than what matters. ``undecided``: the noise hides whether it matters. ``untested``: there is one
number of each side, which has no noise to be compared with."""

Role = Literal["step", "part", "inside", "window", "single"]
"""``step``: the step time, which decides. ``part``: these add up to the step. ``inside``: lies within the parts. ``window``:
of the profiled steps. ``single``: one number per run."""

Unit = Literal["us", "ratio", "bytes"]

Per = Literal["step", "sample", "token"]


class Shift(msgspec.Struct, frozen=True, kw_only=True):
    """B minus A of one statistic, in the quantity's unit."""

    a: float
    b: float
    difference: float
    low: float
    high: float
    """The interval in which the difference lies. All intervals of a comparison hold at once with its ``confidence``."""
    relative: float | None
    """Difference and interval over ``a``; ``None`` unless that is positive."""
    relative_low: float | None
    relative_high: float | None
    p_value: float
    """Corrected for all tests of the comparison: real when at most 1 - ``confidence``."""
    real: bool
    """Noise does not explain it: the interval leaves 0 out."""
    detectable: float
    """The smallest difference that would have been found real with a chance of 80 %."""


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity of both sides: times are microseconds per step, sample or token (see ``per``), means over ranks."""

    name: str
    label: str
    unit: Unit
    role: Role
    better: Literal["lower", "higher"]
    a: float | None
    """Mean over the steps that were compared."""
    b: float | None
    difference: float | None
    of_step: float | None
    """The difference as a share of A's step time (of its profiled steps for ``window``); for times only."""
    typical: Shift | None = None
    """Of the median step. ``None``: not tested."""
    average: Shift | None = None
    """Of the mean step, to which rare slow steps add."""
    superiority: float | None = None
    """Chance that a step of B is larger than one of A, ties half: 0.5 is no difference."""
    cliffs_delta: float | None = None
    """2 * superiority - 1: -1 to 1."""
    outcome: Outcome
    why: str | None = None
    """What is missing, where the outcome is ``insufficient_data`` or ``untested``."""


class RankShift(msgspec.Struct, frozen=True, kw_only=True):
    """One rank: did it become slower, itself and against its peers?"""

    rank: int
    host_a: str | None
    host_b: str | None
    own_a_us: float
    """Mean own time, per step, sample or token."""
    own_b_us: float
    excess_a_us: float
    """Mean of it above the median of the other ranks that do the same work; the shifts are of this."""
    excess_b_us: float
    typical: Shift | None
    average: Shift | None
    phase: Phase | None
    """Where its own time above its peers' changed most, of those that became slower or faster."""
    outcome: Outcome


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Work per second of the whole job, from the average step."""

    unit: Literal["samples", "tokens"]
    a: float
    b: float
    relative: float
    relative_low: float | None
    relative_high: float | None


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One run, or a part of it, as it was compared."""

    label: str
    path: str
    run_id: str
    name: str
    attempt: int
    world_size: int
    ranks: int
    """Ranks compared."""
    steps: tuple[int, int]
    """First step and the step after the last that there are records of."""
    used_steps: int
    left_out: dict[str, int]
    """Steps that were not compared, by reason: ``warm_up``, ``profiled``, ``incomplete``, ``without_own_time``."""
    simulated: bool
    step_us: float | None
    """Mean step time."""
    samples_per_step: float | None
    """Of the whole job. Ranks that work on the same samples (tensor, pipeline, context parallel) count once, if that is known."""
    tokens_per_step: float | None
    samples_per_s: float | None
    tokens_per_s: float | None
    cost_per_million_samples: Cost | None
    cost_per_million_tokens: Cost | None
    warnings: list[str] = []


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """B against A."""

    a: str
    b: str
    """Labels of the sides."""
    outcome: Outcome
    """Of the step time."""
    summary: str
    """For a person."""
    per: Per
    basis: Literal["own", "wall"]
    """What the parts are: own time per phase, waiting and communication; or walls of the phases, where waiting is not known."""
    quantities: list[Quantity]
    throughput: list[Throughput]
    ranks: list[RankShift]
    """Empty where own times are not known, or ranks have no peers."""
    slower_hosts: list[str]
    """Hosts of which every rank became slower, being several and not all."""
    differs: list[str]
    """What else is not the same: versions, GPUs, backend, layout."""


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the efficiency that was lost."""

    name: str
    label: str
    share: float
    """Of all rank-time at this world size; negative: gained. The shares add up to 1 - efficiency."""


class ScalingRow(msgspec.Struct, frozen=True, kw_only=True):
    """One world size."""

    label: str
    world_size: int
    per_s: float | None
    """Work per second, in the unit of ``Scaling.work``."""
    speedup: float | None
    """Over the reference."""
    linear: float
    """What the speedup would be if it were linear."""
    efficiency: float | None
    """speedup / linear."""
    efficiency_low: float | None
    efficiency_high: float | None
    losses: list[Loss]
    cost_per_million: Cost | None
    """Of the unit of work."""


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """Several world sizes, the smallest of which is the reference."""

    reference: str
    work: Literal["samples", "tokens", "input_elements"] | None
    """The measure of work that all runs know; ``None``: there is none, so neither is there an efficiency."""
    rows: list[ScalingRow]
    summary: str


class CompareResult(msgspec.Struct, frozen=True, kw_only=True):
    """Everything ``compare`` knows."""

    schema: str = COMPARE_SCHEMA
    mode: Mode
    confidence: float
    """That all intervals and tests of one comparison hold at once."""
    min_change: float
    """The smallest relative change of the step time that matters."""
    method: str
    sides: list[Side]
    comparisons: list[Comparison]
    """Each against the first side; empty for ``scaling``."""
    scaling: Scaling | None = None
