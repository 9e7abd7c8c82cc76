"""Doubts about the traces of a job: collectives that some of them lack, and times that contradict each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet
from typing import Final

from rankscope.analysis.collectives.matched import MatchedCollectives
from rankscope.analysis.collectives.matching import Matching
from rankscope.analysis.inference.profiled_steps import DeviceStraggler
from rankscope.analysis.result.text import counted
from rankscope.base.text import ranks_text

_FEW_COLLECTIVES: Final = 0.05
"""Share of its collectives that a trace may lack, as at its edges."""
MOST_COMMUNICATION: Final = 0.8
"""Share of the communication time in matched collectives below which most of the waiting may be invisible."""
_BEYOND: Final = 1.25
"""Share of the window from which a cost is impossible. Edges make some difference: a rank may be waited for before it appears."""
_SEEN_IN_WAITS: Final = 0.1
"""Smallest share of what a slow rank costs that shows as waiting of the others, where most of the communication is matched."""


def incomplete_ranks(matching: Matching, ranks: AbstractSet[int]) -> list[int]:
    """Return the ``ranks`` whose traces lack more than a few of the collectives that the other ranks of their groups have.

    What they waited there looks like work, so their own times on the devices show nothing.
    """
    have = Counter[int]([*matching.matches.rank.tolist(), *matching.partial.rank.tolist()])
    missing_by_rank = Counter[int]()
    partial = matching.partial
    for team, members in zip(partial.team.tolist(), partial.listed, strict=True):
        missing_by_rank.update((ranks & set(members or ranks)) - set(partial.teams[team]))
    return [rank for rank, count in missing_by_rank.items() if count > max(1, _FEW_COLLECTIVES * (count + have[rank]))]


def impossible_pairs(matching: Matching) -> str | None:
    """Return why traces are not of the same run, where most collectives that they have in common end before they begin; or none.

    Offsets and drifts of clocks do not explain that: these are fitted to the collectives.
    """
    impossible = matching.unmatched_by.get("impossible", 0)
    pairs = impossible + len(matching.matches)
    if 2 * impossible <= pairs:
        return None
    return (
        f"in {impossible} of the {counted(pairs, 'collective')} that the traces have in common, some ranks leave before others "
        "come: the traces are of different runs, or ranks with the same host name have different clocks"
    )


def contradiction(
    straggler: DeviceStraggler | None,
    matched: MatchedCollectives,
    window_us: float,
    *,
    known_share: float,
    source: str = "traces",
) -> str | None:
    """Return why the times of the traces contradict a rank that seems slow; ``None`` if they do not, or none does.

    ``known_share``: share of the communication in matched collectives. ``source``: what the times are of, for the sentence.
    """
    if straggler is None:
        return None
    slow, times = straggler.slow, straggler.times
    waited_us = sum(matched.blame.imposed_us.get(rank, 0.0) for rank in slow.ranks)
    victims = max(1, len(matched.blame.ranks) - len(slow.ranks))
    # The waits in collectives at the same time add up, to more than the window.
    saved_us = min(slow.gain_us, window_us) if times is None else slow.gain_us * len(times.steps)
    cost_us = waited_us / victims if times is None else saved_us
    if cost_us > _BEYOND * window_us:
        return f"{ranks_text(slow.ranks)} would make the others wait longer than the {source} cover, so clocks or times are wrong"
    # Ranks that collectives alone name are waited for there.
    is_known = times is not None and known_share >= MOST_COMMUNICATION and not matched.matching.directed
    if is_known and waited_us < _SEEN_IN_WAITS * saved_us:
        return f"{ranks_text(slow.ranks)} would be slow by own times, but no rank waits for it, so clocks or times are wrong"
    return None
