"""Cost per unit of work."""

from __future__ import annotations

from rankscope.analysis.result.analysis import Cost
from rankscope.runs.records import RunInfo


def priced(given: Cost | None, info: RunInfo) -> Cost | None:
    """Return the price of a GPU-hour: the given one, else the one recorded with the run."""
    if given is not None or info.price_per_gpu_hour is None:
        return given
    return Cost(amount=info.price_per_gpu_hour, currency=info.currency or "USD")


def cost_per_million(per_s: float | None, world_size: int, gpu_hour: Cost | None) -> Cost | None:
    """Return the cost of a million samples or tokens, of which the whole job does ``per_s`` per second; ``None`` if unknown."""
    if per_s is None or per_s <= 0 or gpu_hour is None:
        return None
    return Cost(amount=1e6 / per_s / 3600 * world_size * gpu_hour.amount, currency=gpu_hour.currency)
