"""Origin and victims: a rank that comes last because it had itself been kept waiting in another group is a victim, too.

Within a step, in the order in which collectives came together on the common clock, each rank carries what has delayed it so far:
per origin, the waiting that no compute hid. When it then comes last at a collective of another group, the others' wait is
charged to those origins, as far as they delayed it more than the one that waits, and no further than that one waited; the rest
is its own. What a group charges delays its members in turn, so chains over any number of groups lead back to their origin,
and, going forward in time, no cycle can arise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

MAX_ORIGINS: Final = 16
"""So many origins are carried along per rank, the largest; what others did stays with the last to arrive."""

Charge = dict[int, float]
"""Origin to nanoseconds, of one victim's wait."""


class Meeting(msgspec.Struct, frozen=True):
    """One collective: who kept whom waiting."""

    step: int
    members: tuple[int, ...]
    culprit: int
    """Who came last."""
    when_ns: int
    """When that was, on the common clock."""
    waits_ns: Mapping[int, int]
    """Victim to how long it waited; those that did not are left out."""

    @property
    def soonest(self) -> tuple[int, int]:
        """Who of the others waited least, and how long: how much earlier it would have gone on without the last one."""
        others = ((self.waits_ns.get(rank, 0), rank) for rank in self.members if rank != self.culprit)
        wait, rank = min(others)
        return rank, wait


class _Delay(msgspec.Struct):
    """What has delayed one rank so far, by the group in which it was kept waiting and the origin."""

    by_group: dict[tuple[int, ...], Charge] = msgspec.field(default_factory=dict)

    def outside(self, members: tuple[int, ...]) -> Charge:
        """Per origin, what delayed it in other groups than this one: in this one all members had the same."""
        total: Charge = {}
        for group, delays in self.by_group.items():
            if group != members:
                for origin, amount in delays.items():
                    total[origin] = total.get(origin, 0.0) + amount
        return total

    def add(self, members: tuple[int, ...], charge: Charge, share: float) -> None:
        """What it was charged for as a victim, as far as it was really held up."""
        mine = self.by_group.setdefault(members, {})
        for origin, amount in charge.items():
            mine[origin] = mine.get(origin, 0.0) + share * amount
        if len(mine) > MAX_ORIGINS:
            del mine[min(mine, key=lambda origin: mine[origin])]

    def settle(self, members: tuple[int, ...], origin: int, left: float, shown: float) -> None:
        """This group has met, and this was the last to come. Of what an origin did to it elsewhere, ``left`` counts on: the
        others have had as much, or compute hid that they waited. ``shown`` is now common to all; the rest it had made up for.
        """
        before = self.outside(members).get(origin, 0.0)
        for group, delays in self.by_group.items():
            if group != members and origin in delays:
                delays[origin] *= min(1.0, left / before)
        self.add(members, {origin: shown}, 1.0)


def charge_origins(
    meetings: Sequence[Meeting], exposed: Callable[[int, int], float], *, least_ns: float = 0.0
) -> list[dict[int, Charge]]:
    """Per meeting and victim, who is to be charged with how much of its wait; only where that is not the last to arrive alone.

    ``exposed(number, victim)``: share of that wait that no compute hid, 0 to 1. Waits and delays up to ``least_ns`` are noise.
    """
    charged: list[dict[int, Charge]] = [{} for _ in meetings]
    groups: dict[int, list[tuple[int, ...]]] = {}
    # Each once: thousands of members take long to be told from others.
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
        charged[number] = _meet(meeting, delays, partial(exposed, number), least_ns)
    return charged


def _meet(meeting: Meeting, delays: Mapping[int, _Delay], exposed: Callable[[int], float], least_ns: float) -> dict[int, Charge]:
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
        share = exposed(victim)
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
            # Imported for chains of delays only: it takes as long as a dozen of our modules.
            from statistics import median

            left, shown = zip(*both, strict=True)
            delays[meeting.culprit].settle(meeting.members, origin, median(left), median(shown))
    return charged


def _split(wait: int, culprit: int, victim: int, inherited: Charge, before: Charge) -> Charge:
    """One victim's wait: what origins delayed the last to arrive by, more than the victim itself, and the rest.

    The sum is the wait. Parts of less than a fiftieth are not told apart.
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
