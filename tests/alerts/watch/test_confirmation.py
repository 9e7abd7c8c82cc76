"""A finding must last to become an alert, a straggler on new steps, and be absent for a while to end one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.alerts.watch.watched_world import MakeWorld, analysis_of

from rankscope.alerts.watch.conditions.confirmation import FIRST_TEST, TESTS, Confirmation, Suspicion
from rankscope.alerts.watch.followed_runs import FollowedRuns
from rankscope.alerts.watch.ledger import FiringPolicy, FiringState, advance
from rankscope.analysis.inference.judging.slow_ranks import SlowRanks
from rankscope.analysis.online import NewSteps
from rankscope.analysis.result.analysis import Analysis


def named(steps: int, *ranks: int, pattern: Any = "fixed") -> NewSteps:
    """Return a judgement of new steps that names ``ranks``."""
    return NewSteps(steps, [SlowRanks(list(ranks), pattern, 1.0, 1.0, 0.001, 1.0, 1.0)] if ranks else [])


def from_steps(analysis: Analysis, end: int) -> Analysis:
    """Return the analysis with a verdict from the step records before ``end``."""
    verdict = msgspec.structs.replace(analysis.verdict, steps=(0, end), evidence_source="steps")
    return msgspec.structs.replace(analysis, verdict=verdict)


def test_unconfirmed_verdict_raises_no_alert(make_world: MakeWorld) -> None:
    # Given a rank that the recent steps name at every evaluation, and the new steps alone never do
    world = make_world()
    for end in range(500, 1100, 5):
        world.new_steps = named(end - 500)
        world.advance(from_steps(analysis_of(2), end))
    assert world.receiver.calls == []
    # Then the first steps are not tested again: the tests begin after the steps of the first verdict
    assert world.judged_since[0] == (500, FIRST_TEST)
    assert min(since for since, _ in world.judged_since) == 500


def test_straggler_confirmed_by_new_steps_raises_an_alert(make_world: MakeWorld) -> None:
    world = make_world()
    for end in (500, 505, 510, 515):
        world.advance(from_steps(analysis_of(2), end))
    assert world.receiver.calls == []
    world.new_steps = named(32, 2)
    world.advance(from_steps(analysis_of(2), 535))
    assert world.heard == [("firing", "2")]


def test_a_verdict_from_profiled_windows_needs_no_new_steps(make_world: MakeWorld) -> None:
    world = make_world()
    world.advance(analysis_of(2), times=2)
    assert world.heard == [("firing", "2")]


def test_a_restarted_watcher_continues_a_suspicion(make_world: MakeWorld) -> None:
    first = make_world()
    first.advance(from_steps(analysis_of(2), 500))
    second = first.restarted()
    second.new_steps = named(32, 2)
    second.advance(from_steps(analysis_of(2), 535))
    assert second.judged_since == [(500, FIRST_TEST)]
    assert second.heard == [("firing", "2")]


def test_new_steps_are_tested_each_time_their_number_has_doubled() -> None:
    # Given a run that has one more step at each evaluation, with a suspicion at step 1,000
    tests: list[int] = []
    suspicion: Suspicion | None = None

    def judge_since(end: int) -> Callable[[int, int], NewSteps | None]:
        def judge(since: int, at_least: int) -> NewSteps | None:
            if end - since < at_least:
                return None
            tests.append(end - since)
            return named(end - since, 3)

        return judge

    for end in range(1000, 1501):
        suspicion = Confirmation(0, end, judge_since(end)).advance(suspicion, [2])
        assert not suspicion.confirmed
    assert tests == [32, 64, 128, 256, 500]
    assert len(tests) == TESTS
    # Then it starts anew after the steps that were tested
    suspicion = Confirmation(0, 1501, judge_since(1501)).advance(suspicion, [2])
    assert suspicion == Suspicion(attempt=0, since=1501)


@pytest.mark.parametrize(
    ("ranks", "new", "confirmed"),
    [
        ([2], named(32, 2, 5), True),
        ([2], named(32, 5), False),
        ([2], named(32, 2, 3, 4, pattern="rotating"), False),
        ([], named(32, 2, 3, 4, pattern="rotating"), True),
        ([], named(32, 2), False),
        (range(40), named(32, *range(20)), True),
        (range(40), named(32, *range(19)), False),
    ],
)
def test_new_steps_confirm_the_same_ranks_only(ranks: Any, new: NewSteps, confirmed: bool) -> None:
    confirmation = Confirmation(0, 1032, lambda _since, _at_least: new)
    assert confirmation.advance(Suspicion(attempt=0, since=1000), ranks).confirmed is confirmed


def test_suspicion_restarts_with_a_new_attempt() -> None:
    confirmation = Confirmation(1, 40, lambda _since, _at_least: pytest.fail("tested"))
    assert confirmation.advance(Suspicion(attempt=0, since=10, confirmed=True), [2]) == Suspicion(attempt=1, since=40)


def test_new_steps_are_judged_without_earlier_steps(make_run: Any) -> None:
    # Given a run in which rank 2 was slow in the first 60 steps, and rank 1 in the 40 after them
    run = make_run(slow=2)
    run.slow = 1
    run.grow(40)
    following = FollowedRuns()
    assert following.judge_since(run.path, 60, at_least=FIRST_TEST) is None
    following.update(run.path)
    new = following.judge_since(run.path, 60, at_least=FIRST_TEST)
    assert new is not None
    assert (new.steps, [slow.ranks for slow in new.slow]) == (40, [[1]])
    assert following.judge_since(run.path, 60, at_least=41) is None


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
def test_alert_fires_only_after_enough_consecutive_findings(history: list[bool], policy: FiringPolicy) -> None:
    tracks = [None, *follow(history, policy)]
    for index, (before, after) in enumerate(pairwise(tracks)):
        if after and after.state == "firing" and not (before and before.state == "firing"):
            assert all(history[index + 1 - policy.fire_after : index + 1])
            assert index + 1 >= policy.fire_after


@given(histories, policies)
def test_alert_resolves_only_after_enough_clean_evaluations(history: list[bool], policy: FiringPolicy) -> None:
    tracks = [None, *follow(history, policy)]
    for index, (before, after) in enumerate(pairwise(tracks)):
        if before and before.state == "firing" and (after is None or after.state != "firing"):
            assert after is not None
            assert after.state == "resolved"
            assert not any(history[index + 1 - policy.resolve_after : index + 1])


@given(histories, policies)
def test_state_depends_only_on_the_latest_evaluations(history: list[bool], policy: FiringPolicy) -> None:
    fired = follow([*history, *[True] * policy.fire_after], policy)[-1]
    quiet = follow([*history, *[False] * policy.resolve_after], policy)[-1]
    assert fired is not None
    assert fired.state == "firing"
    assert quiet is None or quiet.state == "resolved"


@pytest.mark.parametrize("bad", [(0, 1), (1, 0), (-1, 3)])
def test_invalid_firing_policy_is_refused(bad: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        FiringPolicy(*bad)
