"""When a finding becomes an alert and when an alert ends: a pure state machine, so that nothing flaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec


@dataclass(frozen=True, slots=True)
class Policy:
    """Consecutive evaluations with the finding to fire, and without it to resolve; both at least 1."""

    fire_after: int = 3
    resolve_after: int = 3
    least_firing_s: float = 0.0
    """An alert fires for at least as long: whoever groups alerts must get to see it before it is over."""

    def __post_init__(self) -> None:
        if min(self.fire_after, self.resolve_after) < 1:
            raise ValueError("fire_after and resolve_after must be at least 1")


class Track(msgspec.Struct, frozen=True):
    """Where one finding stands.

    ``streak`` counts consecutive evaluations that speak for leaving the state: with the finding while pending, without it
    while firing.
    """

    state: Literal["pending", "firing", "resolved"]
    streak: int = 0


def advance(track: Track | None, *, present: bool, policy: Policy, firing_s: float = float("inf")) -> Track | None:
    """The next state after one evaluation that did or did not show the finding; ``None`` when there is nothing to follow.

    An evaluation that could not tell must not be passed on: missing is neither present nor absent. ``firing_s``: for how long it
    has been firing.
    """
    if track is not None and track.state == "firing":
        misses = 0 if present else track.streak + 1
        over = misses >= policy.resolve_after and firing_s >= policy.least_firing_s
        return Track("resolved") if over else Track("firing", misses)
    if not present:
        return None
    hits = 1 + (track.streak if track is not None and track.state == "pending" else 0)
    return Track("firing") if hits >= policy.fire_after else Track("pending", hits)
