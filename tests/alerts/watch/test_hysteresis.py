"""A finding must last to become an alert, and be absent for a while to end one."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.alerts.watch.ledger import FiringPolicy, FiringState, advance

policies = st.builds(FiringPolicy, fire_after=st.integers(1, 5), resolve_after=st.integers(1, 5))
histories = st.lists(st.booleans(), max_size=60)


def follow(history: list[bool], policy: FiringPolicy) -> list[FiringState | None]:
    track: FiringState | None = None
    tracks = []
    for present in history:
        track = advance(track, present=present, policy=policy)
        tracks.append(track)
    return tracks


@given(histories, policies)
def test_it_starts_to_fire_only_after_enough_consecutive_findings(history: list[bool], policy: FiringPolicy) -> None:
    tracks = [None, *follow(history, policy)]
    for index, (before, after) in enumerate(pairwise(tracks)):
        if after and after.state == "firing" and not (before and before.state == "firing"):
            assert all(history[index + 1 - policy.fire_after : index + 1])
            assert index + 1 >= policy.fire_after


@given(histories, policies)
def test_it_resolves_only_after_enough_consecutive_evaluations_without(history: list[bool], policy: FiringPolicy) -> None:
    tracks = [None, *follow(history, policy)]
    for index, (before, after) in enumerate(pairwise(tracks)):
        if before and before.state == "firing" and (after is None or after.state != "firing"):
            assert after is not None
            assert after.state == "resolved"
            assert not any(history[index + 1 - policy.resolve_after : index + 1])


@given(histories, policies)
def test_a_long_enough_history_decides_whatever_came_before(history: list[bool], policy: FiringPolicy) -> None:
    fired = follow([*history, *[True] * policy.fire_after], policy)[-1]
    quiet = follow([*history, *[False] * policy.resolve_after], policy)[-1]
    assert fired is not None
    assert fired.state == "firing"
    assert quiet is None or quiet.state == "resolved"


@pytest.mark.parametrize("bad", [(0, 1), (1, 0), (-1, 3)])
def test_a_policy_that_could_never_work_is_refused(bad: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        FiringPolicy(*bad)
