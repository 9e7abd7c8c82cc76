"""Steps of a run without the parts that are chosen in the address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rankscope.analysis.result.text import joined
from rankscope.analysis.whatif.step_scenarios import MOST_CAUSES, MOST_RANKS, Combinations
from rankscope.analysis.whatif.whatif_result import WhatIf
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.model.state import host_item
from rankscope.dashboards.whatif.data import Removable, removables

ALL: Final = "all"
"""Every straggler."""


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """Step time without the removed items; ``why``: the reason if it is not known."""

    label: str
    step_seconds: float | None
    why: str = ""


def step_without(run: RunData, items: Sequence[str]) -> Counterfactual | None:
    """Return the step without ``items``, ``None`` if there are no items. The answer must be ``ok``.

    The combinations of the run are read only for several parts, or for one that is not among the answer's.
    """
    if not items:
        return None
    result = run.whatif.result
    if ALL in items:
        return Counterfactual("any straggler", result.ideal_step_seconds)
    labels = {removable.item: removable for removable in removables(result)}
    label = joined([labels[item].label if item in labels else item.replace(":", " ") for item in items])
    if len(items) == 1 and items[0] in labels:
        return Counterfactual(label, labels[items[0]].effect.without_step_seconds)
    return _together(run, _with_ranks_of_hosts(items, result), labels, label)


def _together(run: RunData, items: Sequence[str], by_item: Mapping[str, Removable], label: str) -> Counterfactual:
    if run.whatif.result.source.evidence != "steps":
        return Counterfactual(label, None, _ONE_BY_ONE)
    causes = _named(items, "cause")
    ranks = [int(name) for name in _named(items, "rank") if name.isascii() and name.isdecimal()]
    if why := _never_together(items, ranks, causes):
        return Counterfactual(label, None, why)
    if (combinations := run.combinations) is None:
        return Counterfactual(label, None, _ONE_BY_ONE)
    alone = [by_item[item].label for item in items if item in by_item and _is_only_alone(item, combinations)]
    if why := _only_alone(alone) or _absent(combinations, ranks, causes):
        return Counterfactual(label, None, why)
    return Counterfactual(label, combinations.without_step_seconds(ranks, causes))


def _with_ranks_of_hosts(items: Sequence[str], result: WhatIf) -> list[str]:
    """Return the items with the ranks of each host in its place."""
    ranks_of = {host_item(row.host): [f"rank:{rank}" for rank in row.ranks] for row in result.by_host}
    return list(dict.fromkeys(each for item in items for each in ranks_of.get(item, [item])))


_ONE_BY_ONE: Final = "From profiled steps only one part can be removed at a time. Choose one listed part, or all stragglers."


def _is_only_alone(item: str, combinations: Combinations) -> bool:
    kind, _, name = item.partition(":")
    return kind == "cause" and name not in combinations.causes


def _only_alone(labels: Sequence[str]) -> str:
    if not labels:
        return ""
    return f"Only the {MOST_CAUSES} costliest causes can be removed together with other parts; {joined(labels)} only alone."


def _never_together(items: Sequence[str], ranks: Sequence[int], causes: Sequence[str]) -> str:
    """Return why no run allows these items together; ``""`` if some run may."""
    if len(ranks) + len(causes) < len(items):
        return "Ranks and causes can be removed together; phases and stages only one at a time."
    return f"At most {MOST_RANKS} ranks can be removed together; all stragglers can." if len(ranks) > MOST_RANKS else ""


def _absent(combinations: Combinations, ranks: Sequence[int], causes: Sequence[str]) -> str:
    """Return which of these the run does not have; ``""`` if it has all of them."""
    absent = [
        *(f"rank {rank}" for rank in ranks if rank not in combinations.ranks),
        *(cause for cause in causes if cause not in combinations.causes),
    ]
    return f"The evidence does not have {joined(absent)}." if absent else ""


def _named(items: Sequence[str], kind: str) -> list[str]:
    return [name for of, _, name in (item.partition(":") for item in items) if of == kind]
