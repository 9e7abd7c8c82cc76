"""Origins of waits: a rank that comes last because it had itself waited in another group is a victim, too.

The collectives of a step are processed in the order in which their last ranks arrived, on the common clock. Each rank carries
its delays so far: per origin, the waiting that no compute hid. When the rank then comes last at a collective of another group,
the wait of each victim is charged to those origins. A charge is at most the amount by which the origin delayed the last rank
more than the victim, and all charges together are at most the wait. The rest of the wait is charged to the last rank itself.
Charged waits delay the victims in turn, so chains over any number of groups lead back to their origin. Processing forward in
time rules out cycles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

MAX_ORIGINS: Final = 16
"""Number of origins kept per rank and group, the largest; delays by others are charged to the last rank to arrive."""

Charge = dict[int, float]
"""Parts of one victim's wait in nanoseconds, by origin."""


class Meeting(msgspec.Struct, frozen=True):
    """Collective with the rank that came last and the ranks that waited for it."""

    step: int
    members: tuple[int, ...]
    culprit: int
    """Rank that came last."""
    when_ns: int
    """Arrival of that rank, on the common clock."""
    waits_ns: Mapping[int, int]
    """Wait of each victim; ranks that did not wait are left out."""

    @property
    def soonest(self) -> tuple[int, int]:
        """Rank that waited least among the others, and its wait, by which the collective would start earlier without the last."""
        others = ((self.waits_ns.get(rank, 0), rank) for rank in self.members if rank != self.culprit)
        wait, rank = min(others)
        return rank, wait


class _Delay(msgspec.Struct):
    """Delays of one rank so far, by the group in which it waited and by origin."""

    by_group: dict[tuple[int, ...], Charge] = msgspec.field(default_factory=dict)

    def outside(self, members: tuple[int, ...]) -> Charge:
        """Return the delays per origin in groups other than ``members``, where all members had the same delays."""
        total: Charge = {}
        for group, delays in self.by_group.items():
            if group != members:
                for origin, amount in delays.items():
                    total[origin] = total.get(origin, 0.0) + amount
        return total

    def add(self, members: tuple[int, ...], charge: Charge, share: float) -> None:
        """Add the charges for a wait of this rank as a victim; ``share`` is the share of the wait that really delayed it."""
        mine = self.by_group.setdefault(members, {})
        for origin, amount in charge.items():
            mine[origin] = mine.get(origin, 0.0) + share * amount
        if len(mine) > MAX_ORIGINS:
            del mine[min(mine, key=lambda origin: mine[origin])]

    def settle(self, members: tuple[int, ...], origin: int, left: float, shown: float) -> None:
        """Update the delays by ``origin`` after a collective of ``members`` at which this rank came last.

        ``left``: the part of its delay in other groups that keeps counting, because the others were delayed as much or compute
        hid their waits. ``shown``: the part that now delays all members. The rank has recovered the rest.
        """
        before = self.outside(members).get(origin, 0.0)
        for group, delays in self.by_group.items():
            if group != members and origin in delays:
                delays[origin] *= min(1.0, left / before)
        self.add(members, {origin: shown}, 1.0)


def charge_origins(
    meetings: Sequence[Meeting], exposed: Sequence[Mapping[int, float]], *, least_ns: float = 0.0
) -> list[dict[int, Charge]]:
    """Return the charges by origin, per meeting and victim, except for waits charged to the last rank alone.

    ``exposed``: per meeting and victim, the share of the wait that no compute hid, 0 to 1. Waits and delays of up to
    ``least_ns`` are noise.
    """
    charged: list[dict[int, Charge]] = [{} for _ in meetings]
    groups: dict[int, list[tuple[int, ...]]] = {}
    # Each group only once: comparing groups of thousands of members is slow.
    for members in dict.fromkeys(meeting.members for meeting in meetings):
        for rank in members:
            groups.setdefault(rank, []).append(members)
    if all(len(one) == 1 for one in groups.values()):
        return charged
    delays: dict[int, _Delay] = {}
    step: int | None = None
    for number in sorted(range(len(meetings)), key=lambda at: (meetings[at].step, meetings[at].when_ns)):
        meeting = meetings[number]
        if meeting.step != step:
            delays, step = {rank: _Delay() for rank in groups}, meeting.step
        charged[number] = _meet(meeting, delays, exposed[number], least_ns)
    return charged


def _meet(meeting: Meeting, delays: Mapping[int, _Delay], exposed: Mapping[int, float], least_ns: float) -> dict[int, Charge]:
    charged: dict[int, Charge] = {}
    inherited = {
        origin: amount
        for origin, amount in delays[meeting.culprit].outside(meeting.members).items()
        if amount > least_ns and origin != meeting.culprit
    }
    seen: dict[int, list[tuple[float, float]]] = {origin: [] for origin in inherited}
    for victim, wait in meeting.waits_ns.items():
        if wait <= least_ns:
            continue
        share = exposed[victim]
        charge = {meeting.culprit: float(wait)}
        if inherited:
            before = delays[victim].outside(meeting.members)
            charge = _split(wait, meeting.culprit, victim, inherited, before)
            for origin, both in seen.items():
                got = charge.get(origin, 0.0)
                both.append((before.get(origin, 0.0) + got * (1 - share), got * share))
            if len(charge) > 1 or meeting.culprit not in charge:
                charged[victim] = charge
        if share > 0:
            delays[victim].add(meeting.members, charge, share)
    for origin, both in seen.items():
        if both:
            # Imported only for chains of delays: it takes as long as a dozen of our modules.
            from statistics import median

            left, shown = zip(*both, strict=True)
            delays[meeting.culprit].settle(meeting.members, origin, median(left), median(shown))
    return charged


def _split(wait: int, culprit: int, victim: int, inherited: Charge, before: Charge) -> Charge:
    """Split one victim's wait into charges to origins and the rest, which is charged to the last rank.

    An origin is charged the amount by which it delayed the last rank more than the victim. The charges sum to the wait. Parts
    of less than a fiftieth of the wait are not separated.
    """
    claims = {
        origin: more
        for origin, amount in inherited.items()
        if origin != victim and (more := amount - before.get(origin, 0.0)) > 0.02 * wait
    }
    total = sum(claims.values())
    if total >= 0.98 * wait:
        return {origin: amount * wait / total for origin, amount in claims.items()}
    return {**claims, culprit: wait - total}
