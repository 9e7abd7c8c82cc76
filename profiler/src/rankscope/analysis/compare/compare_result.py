"""The result of a comparison: the JSON of ``rankscope compare --format json`` (schema ``rankscope.compare/1``).

An undefined value is ``None`` (JSON ``null``), never 0. Fields are only ever added. B is compared with A.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rankscope.analysis.result.analysis import Cost
from rankscope.runs.records import Phase

COMPARE_SCHEMA: Final = "rankscope.compare/1"

Mode = Literal["pairs", "before_after", "scaling"]

Outcome = Literal["worse", "better", "mixed", "same", "undecided", "insufficient_data", "untested"]
"""``worse``, ``better``: the change is real and large enough to matter. ``mixed``: the typical step changed one way, the average
step the other. ``same``: the change, real or not, is too small to matter. ``undecided``: the noise hides whether it matters.
``untested``: there is only one number per side, without noise to compare with."""

Role = Literal["step", "part", "inside", "window", "single"]
"""``step``: the step time, which decides. ``part``: these add up to the step. ``inside``: lies within the parts. ``window``:
measured in the profiled steps. ``single``: one number per run."""

Unit = Literal["us", "ratio", "bytes"]

Per = Literal["step", "sample", "token"]


class Shift(msgspec.Struct, frozen=True, kw_only=True):
    """B minus A of one statistic, in the quantity's unit."""

    a: float
    b: float
    difference: float
    low: float
    high: float
    """Bounds of the interval of the difference. All intervals of a comparison hold at once with its ``confidence``."""
    relative: float | None
    """Difference and interval divided by ``a``; ``None`` unless ``a`` is positive."""
    relative_low: float | None
    relative_high: float | None
    p_value: float
    """p-value corrected for all tests of the comparison: the difference is real when it is at most 1 - ``confidence``."""
    real: bool
    """True if noise does not explain the difference: the interval excludes 0."""
    detectable: float
    """Smallest difference that would have been found real with a chance of 80 %."""


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity of both sides: times are microseconds per step, sample or token (see ``per``), means over ranks."""

    name: str
    label: str
    unit: Unit
    role: Role
    better: Literal["lower", "higher"]
    a: float | None
    """Mean over the compared steps."""
    b: float | None
    difference: float | None
    of_step: float | None
    """Difference as a share of A's step time (of its profiled steps for ``window``); for times only."""
    typical: Shift | None = None
    """Shift of the median step. ``None``: not tested."""
    average: Shift | None = None
    """Shift of the mean step, to which rare slow steps add."""
    superiority: float | None = None
    """Chance that a step of B is larger than one of A, with ties counted half: 0.5 is no difference."""
    outcome: Outcome
    why: str | None = None
    """Missing data, if the outcome is ``insufficient_data`` or ``untested``."""


class RankShift(msgspec.Struct, frozen=True, kw_only=True):
    """Change of one rank's own time, in itself and against its peers."""

    rank: int
    host_a: str | None
    host_b: str | None
    own_a_us: float
    """Mean own time, per step, sample or token."""
    own_b_us: float
    excess_a_us: float
    """Mean own time above the median of the other ranks that do the same work; ``typical`` and ``average`` are shifts of this."""
    excess_b_us: float
    imposed_a_us: float | None = None
    """Imposed wait per step (sample, token) and waiting rank, in the definition of a verdict: the time that its peers waited
    because this rank was last, summed over them, over the steps and the number of peers."""
    imposed_b_us: float | None = None
    typical: Shift | None
    average: Shift | None
    phase: Phase | None
    """Phase in which its own time above its peers' changed most; only for ranks that became slower or faster."""
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
    """Number of compared ranks."""
    steps: tuple[int, int]
    """First recorded step, and the step after the last recorded one."""
    used_steps: int
    left_out: dict[str, int]
    """Number of steps that were not compared, by reason: ``warm_up``, ``profiled``, ``incomplete``, ``without_own_time``."""
    simulated: bool
    step_us: float | None
    """Mean step time."""
    typical_us: float | None
    """Median step time."""
    samples_per_step: float | None
    """Samples per step of the whole job. Ranks known to share samples (tensor, pipeline, context parallel) count once."""
    tokens_per_step: float | None
    samples_per_s: float | None
    tokens_per_s: float | None
    cost_per_million_samples: Cost | None
    cost_per_million_tokens: Cost | None
    warnings: list[str] = []


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of B with A."""

    a: str
    b: str
    """Labels of the sides."""
    outcome: Outcome
    """Outcome of the step time."""
    sentence: str
    """The answer in one sentence."""
    summary: str
    """Summary for a person, which begins with the sentence."""
    per: Per
    basis: Literal["own", "wall"]
    """Parts of the step. ``own``: own time per phase, waiting and communication. ``wall``: wall time per phase, if waiting is
    not known."""
    quantities: list[Quantity]
    throughput: list[Throughput]
    ranks: list[RankShift]
    """One row per rank; empty if own times are not known, or ranks have no peers."""
    slower_hosts: list[str]
    """Hosts of which every rank became slower; a host counts if it has several ranks, but not all."""
    differs: list[str]
    """Other differences between the sides: versions, GPUs, backend, layout."""

    @property
    def details(self) -> str:
        """What the summary has beside its sentence."""
        return self.summary.removeprefix(self.sentence).strip()


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the efficiency that was lost."""

    name: str
    label: str
    share: float
    """Share of all rank-time at this world size; negative: gained. The shares add up to 1 - efficiency."""


class ScalingRow(msgspec.Struct, frozen=True, kw_only=True):
    """Scaling at one world size."""

    label: str
    world_size: int
    per_s: float | None
    """Work per second, in the unit of ``Scaling.work``."""
    speedup: float | None
    """Work per second divided by that of the reference."""
    linear: float
    """Speedup of linear scaling."""
    efficiency: float | None
    """``speedup / linear``."""
    efficiency_low: float | None
    efficiency_high: float | None
    losses: list[Loss]
    cost_per_million: Cost | None
    """Cost of a million units of work."""


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """Scaling over several world sizes; the smallest is the reference."""

    reference: str
    work: Literal["samples", "tokens", "input_elements"] | None
    """Measure of work that all runs recorded; ``None``: there is none, and no efficiency."""
    rows: list[ScalingRow]
    summary: str


class CompareResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of ``rankscope compare``."""

    schema: str = COMPARE_SCHEMA
    mode: Mode
    confidence: float
    """Joint confidence of all intervals and tests of one comparison."""
    min_change: float
    """The smallest relative change of the step time that matters."""
    method: str
    sides: list[Side]
    comparisons: list[Comparison]
    """Comparison of each other side with the first; empty for ``scaling``."""
    scaling: Scaling | None = None
