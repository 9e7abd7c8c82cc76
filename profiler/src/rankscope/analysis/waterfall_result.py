"""Where a step's time goes: part of the JSON of ``rankscope analyze``."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

PartName = Literal[
    "ideal",
    "compute",
    "exposed_communication",
    "straggler_wait",
    "copies",
    "input",
    "host",
    "pipeline_bubble",
    "unexplained",
]
PartSource = Literal["steps", "windows", "traces"]

MEANING: Final[dict[PartName, str]] = {
    "ideal": "the floating-point operations of the step at the device's peak",
    "compute": "compute beyond that; all of it where no ideal is known",
    "exposed_communication": "communication that no compute hides, without waiting for later ranks",
    "straggler_wait": "waiting for the last rank",
    "copies": "copies that nothing hides",
    "input": "waiting for the data loader",
    "host": "the host does not keep the device busy; on CPUs: neither computing nor waiting for other ranks or data",
    "pipeline_bubble": "the pipeline's ranks wait for each other",
    "unexplained": "what no part that is known explains",
}
"""What each part is, in the order of the waterfall."""


class WaterfallPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the step. ``None`` where it is not known; its time is then in ``unexplained``."""

    name: PartName
    us: float | None
    share: float | None
    """Of the step."""
    source: PartSource | None = None
    """What it was read from; ``None`` where it is not known, and for what is left over."""
    note: str | None = None
    """Why it is not known, or what else is in it."""


class Waterfall(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that are known sum to ``step_us``, to the nanosecond."""

    unit: Literal["step", "window"]
    step_us: float
    """The mean step after warm-up, without profiled ones where there are others; the mean window of traces."""
    steps: int
    """Steps (of windows: profiled ones) that it is the mean of."""
    parts: list[WaterfallPart]
    """In the order of the waterfall, each of them once."""
    extent_us: float | None = None
    """Of traces whose collectives are matched: from the first start on any rank to the last end on any, on the clock that they
    share. It is the step that a verdict's shares and slowdown are of, and ``rankscope whatif`` plays."""

    def share(self, name: PartName) -> float | None:
        """Share of one part; ``None`` where it is not known."""
        return next(part.share for part in self.parts if part.name == name)
