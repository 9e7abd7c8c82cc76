"""Budgets: the largest shares of a step for communication, input and host, and the largest slowdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rankscope.analysis.result.analysis import Kind
from rankscope.analysis.verdict.bottleneck import LIMITS

PARTS: Final[dict[str, tuple[str, Kind]]] = {
    "communication": ("exposed_communication", "communication_bound"),
    "input": ("input", "input_bound"),
    "host": ("host", "host_bound"),
}
"""Name of a budget to its part of the waterfall, and to the kind of finding when the part exceeds the budget."""

SHARE_WORDING: Final = {row.figure.removeprefix("share."): row.wording for row in LIMITS}
"""Part of the waterfall to the text about its share."""


def _limit(part: str) -> float:
    return next(row.at_least for row in LIMITS if row.figure == f"share.{part}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Limits of the parts of a step, as shares of the step; ``slower`` is a share of the run's own past step time."""

    communication: float = _limit("exposed_communication")
    input: float = _limit("input")
    host: float = _limit("host")
    slower: float = 0.10


BUDGETS: Final = tuple(Budgets.__dataclass_fields__)
"""Names of the budgets."""


def budgets_of(texts: Sequence[str]) -> Budgets:
    """Parse budgets from ``NAME=SHARE``, with a share such as ``0.3`` or ``30%``. Raises ``ValueError``."""
    shares: dict[str, float] = {}
    for budget in texts:
        name, _, text = budget.partition("=")
        if name not in BUDGETS:
            raise ValueError(f"no budget {name!r}; there are {', '.join(BUDGETS)}")
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            raise ValueError(f"{budget}: a share is a number such as 0.3 or 30%") from None
        if not 0 < share <= 1:
            raise ValueError(f"{budget}: a share is above 0 and at most 1, or 100%")
        shares[name] = share
    return Budgets(**shares)
