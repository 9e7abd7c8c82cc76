"""Value of shorter steps in GPU-hours and money per week, at the pace and price of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rankscope.dashboards.data.scenarios import Answer

HOURS_A_WEEK: Final = 168


@dataclass(frozen=True, slots=True)
class Pace:
    """Cost of a week of this job."""

    step_seconds: float
    """Measured step time."""
    gpu_hours: float | None
    """Per week; ``None`` for ranks on CPUs without a price."""
    price_per_gpu_hour: float | None
    currency: str

    def gpu_hours_of(self, seconds: float) -> float | None:
        """Return the GPU-hours per week that ``seconds`` of each step take."""
        return None if self.gpu_hours is None else self.gpu_hours * seconds / self.step_seconds

    def money_of(self, seconds: float) -> float | None:
        """Return the cost per week of ``seconds`` of each step, in ``currency``."""
        hours = self.gpu_hours_of(seconds)
        return None if hours is None or self.price_per_gpu_hour is None else hours * self.price_per_gpu_hour


def pace_of(answer: Answer, *, price: float | None = None, currency: str | None = None) -> Pace:
    """Return the pace from an answer that is ``ok``. ``price`` of a GPU-hour and ``currency`` override the recorded ones."""
    result = answer.result
    price = answer.price_per_gpu_hour if price is None else price
    assert result.measured_step_seconds is not None
    # Ranks on CPUs lose no GPU time unless a price is given for them.
    counts = answer.accelerated or price is not None
    return Pace(
        step_seconds=result.measured_step_seconds,
        gpu_hours=HOURS_A_WEEK * float(result.source.world_size or result.source.ranks) if counts else None,
        price_per_gpu_hour=price,
        currency=currency or answer.currency or "USD",
    )
