"""Waterfall of a step's time: part of the JSON of ``rankscope analyze``."""

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
"""Meaning of each part, in the order of the waterfall."""


class WaterfallPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the step. Its time is ``None`` if unknown, and is then counted in ``unexplained``."""

    name: PartName
    us: float | None
    share: float | None
    """Share of the step."""
    source: PartSource | None = None
    """Source of the part; ``None`` if the part is unknown, and for ``unexplained``."""
    note: str | None = None
    """Reason why the part is unknown, or other time that it includes."""


class Waterfall(msgspec.Struct, frozen=True, kw_only=True):
    """Waterfall of a step, whose known parts sum to ``step_us``, to the nanosecond."""

    unit: Literal["step", "window"]
    step_us: float
    """Mean step time after warm-up, without profiled steps if enough others remain; for traces, the mean window."""
    steps: int
    """Number of steps (for windows: profiled steps) in the mean."""
    parts: list[WaterfallPart]
    """Parts in the order of the waterfall, each exactly once."""
    extent_us: float | None = None
    """Time from the first start on any rank to the last end on any, on the common clock; for traces with matched collectives.
    A verdict's shares and slowdown refer to it, and ``rankscope whatif`` simulates it."""

    def share(self, name: PartName) -> float | None:
        """Return the share of one part; ``None`` if unknown."""
        return next(part.share for part in self.parts if part.name == name)
