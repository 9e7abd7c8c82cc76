"""How much of the step may go where before it is an alert, and how much slower a run may become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rankscope.analysis.bottleneck import LIMITS
from rankscope.analysis.result import Kind

PARTS: Final[dict[str, tuple[str, Kind]]] = {
    "communication": ("exposed_communication", "communication_bound"),
    "input": ("input", "input_bound"),
    "host": ("host", "host_bound"),
}
"""Name of a budget to the part of the waterfall it is for, and what a step beyond it is bound by."""

SAYS: Final = {row.figure.removeprefix("share."): row.says for row in LIMITS}
"""Part to what is said of its share."""


def _limit(part: str) -> float:
    return next(row.at_least for row in LIMITS if row.figure == f"share.{part}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Shares of the step; of ``slower``, of the run's own past."""

    communication: float = _limit("exposed_communication")
    input: float = _limit("input")
    host: float = _limit("host")
    slower: float = 0.10


BUDGETS: Final = tuple(Budgets.__dataclass_fields__)
"""Their names."""


def budgets_of(told: Sequence[str]) -> Budgets:
    """From ``NAME=SHARE``, a share as ``0.3`` or ``30%``. Raises ``ValueError``."""
    shares: dict[str, float] = {}
    for one in told:
        name, _, text = one.partition("=")
        if name not in BUDGETS:
            raise ValueError(f"no budget {name!r}; there are {', '.join(BUDGETS)}")
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            raise ValueError(f"{one}: a share is a number such as 0.3 or 30%") from None
        if not 0 < share <= 1:
            raise ValueError(f"{one}: a share is above 0 and at most 1, or 100%")
        shares[name] = share
    return Budgets(**shares)
