"""What shorter steps are worth: GPU-hours and money per week, at the pace and price of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rankscope.dashboards.data.scenarios import Answer

HOURS_A_WEEK: Final = 168


@dataclass(frozen=True, slots=True)
class Pace:
    """What a week of this job costs."""

    step_seconds: float
    """As measured."""
    gpu_hours: float | None
    """Per week; ``None`` for ranks on CPUs without a price."""
    price_per_gpu_hour: float | None
    currency: str

    def gpu_hours_of(self, seconds: float) -> float | None:
        """Of so many seconds of each step, per week."""
        return None if self.gpu_hours is None else self.gpu_hours * seconds / self.step_seconds

    def money_of(self, seconds: float) -> float | None:
        """The same in money."""
        hours = self.gpu_hours_of(seconds)
        return None if hours is None or self.price_per_gpu_hour is None else hours * self.price_per_gpu_hour


def pace_of(answer: Answer, *, price: float | None = None, currency: str | None = None) -> Pace:
    """Of an answer that is ``ok``. A ``price`` of a GPU-hour and a ``currency`` go before the recorded ones."""
    result = answer.result
    price = answer.price_per_gpu_hour if price is None else price
    assert result.measured_step_seconds is not None
    # Ranks on CPUs lose no GPU time, unless somebody puts a price on them all the same.
    counts = answer.accelerated or price is not None
    return Pace(
        step_seconds=result.measured_step_seconds,
        gpu_hours=HOURS_A_WEEK * float(result.source.world_size or result.source.ranks) if counts else None,
        price_per_gpu_hour=price,
        currency=currency or answer.currency or "USD",
    )
