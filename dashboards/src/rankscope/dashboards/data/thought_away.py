"""Counterfactual chosen in the address: the removed causes or ranks, and the step time without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rankscope.analysis.whatif.result import Effect, WhatIf
from rankscope.analysis.whatif.step_scenarios import MOST_CAUSES, MOST_RANKS, Combinations
from rankscope.dashboards.data.scenarios import Scenarios

ALL: Final = "all"
"""Every straggler."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One removable item of the what-if."""

    item: str
    """Name in the address, such as ``rank:3``."""
    kind: str
    label: str
    effect: Effect


def pieces(result: WhatIf) -> list[Piece]:
    """Return all removable items of an answer, within each kind by slowdown, largest first."""
    phases = result.source.evidence == "steps"
    return [
        *(Piece(f"rank:{row.rank}", "rank", f"rank {row.rank}", row) for row in result.by_rank),
        *(Piece(f"stage:{row.stage}", "stage", f"stage {row.stage}", row) for row in result.by_stage),
        *(Piece(f"cause:{row.cause}", "cause", CAUSE_NAMES.get(row.cause, row.cause), row) for row in result.by_cause),
        *(Piece(f"op:{row.op}", "phase" if phases else "operation", row.op.replace("_", " "), row) for row in result.by_op),
    ]


CAUSE_NAMES: Final[Mapping[str, str]] = {
    "input": "slow input",
    "gc": "garbage collection",
    "checkpoint": "checkpoints",
    "evaluation": "evaluation",
    "imbalance": "more work than others",
    "cpu_contention": "waiting for a CPU",
    "compute": "slow compute",
    "host": "slow host",
    "unknown": "cause unknown",
}


@dataclass(frozen=True, slots=True)
class Thought:
    """Step time without the removed items; ``why``: the reason if it is not known."""

    label: str
    step_seconds: float | None
    why: str = ""


def thought_away(scenarios: Scenarios, items: Sequence[str]) -> Thought | None:
    """Return the step without ``items``, ``None`` if there are no items. The answer must be ``ok``."""
    if not items:
        return None
    result = scenarios.answer.result
    if ALL in items:
        return Thought("any straggler", result.ideal_step_seconds)
    known = {piece.item: piece for piece in pieces(result)}
    label = joined([known[item].label if item in known else item.replace(":", " ") for item in items])
    if len(items) == 1 and items[0] in known:
        return Thought(label, known[items[0]].effect.without_step_seconds)
    causes = _named(items, "cause")
    ranks = [int(name) for name in _named(items, "rank") if name.isascii() and name.isdecimal()]
    together = scenarios.combinations
    alone = [known[item].label for item in items if item in known and _is_only_alone(item, together)]
    if together is None or (why := _only_alone(alone) or _why_not(together, items, ranks, causes)):
        return Thought(label, None, _ONE_BY_ONE if together is None else why)
    return Thought(label, together.without_step_seconds(ranks, causes))


_ONE_BY_ONE: Final = (
    "From profiled steps one part at a time can be thought away. Choose one of those on offer, or all stragglers."
)


def _is_only_alone(item: str, together: Combinations | None) -> bool:
    kind, _, name = item.partition(":")
    return kind == "cause" and together is not None and name not in together.causes


def _only_alone(labels: Sequence[str]) -> str:
    if not labels:
        return ""
    return (
        f"Of the causes, the {MOST_CAUSES} that cost most can be thought away together with others; {joined(labels)} only alone."
    )


def _why_not(together: Combinations, items: Sequence[str], ranks: Sequence[int], causes: Sequence[str]) -> str:
    """Return why these items cannot be removed together; ``""`` if they can."""
    absent = [
        *(f"rank {rank}" for rank in ranks if rank not in together.ranks),
        *(cause for cause in causes if cause not in together.causes),
    ]
    if len(ranks) + len(causes) < len(items):
        return "Ranks and causes can be thought away together; phases and stages that are on offer one at a time."
    if absent:
        return f"The evidence does not have {joined(absent)}."
    return f"At most {MOST_RANKS} ranks can be thought away together; all stragglers can." if len(ranks) > MOST_RANKS else ""


def _named(items: Sequence[str], kind: str) -> list[str]:
    return [name for of, _, name in (item.partition(":") for item in items) if of == kind]


def joined(words: Sequence[str]) -> str:
    """Return the words joined as in ``a, b and c``."""
    return " and ".join([*([", ".join(words[:-1])] if len(words) > 1 else []), *words[-1:]])
