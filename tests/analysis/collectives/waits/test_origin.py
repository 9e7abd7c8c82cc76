"""Origins and victims of waits on schedules of several process groups, with known ground truth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analysis.collectives.clock import Clocks, fit_clocks
from rankscope.analysis.collectives.matching import match_collectives
from rankscope.analysis.collectives.waits.blame import Blame, assign_blame
from rankscope.analysis.collectives.waits.origin import MAX_ORIGINS
from rankscope.analysis.inference.judging.late_ranks import find_late
from rankscope.runs.records import CollectiveRecord

LAYERS = 4
LAYER_US = 5_000.0


@dataclass
class Hybrid:
    """Training in which every rank is in a tensor-parallel group of ``tp`` and a data-parallel one over all of those.

    A step is a forward and a backward pass of ``LAYERS`` layers, after each of which the tensor-parallel group meets, and the
    data-parallel one at the end; or after each layer of the backward pass, while it continues (``overlapped``).
    ``late`` returns the extra time of (rank, step, layer 0 to 7).
    """

    dp: int
    tp: int
    late: Callable[[int, int, int], float] = lambda _rank, _step, _layer: 0.0
    steps: int = 12
    noise: float = 0.003
    seed: int = 0
    overlapped: bool = False
    skew_us: Mapping[int, int] = field(default_factory=dict)
    """Rank to the lead of its clock."""
    records: dict[int, list[CollectiveRecord]] = field(default_factory=dict)

    def blame(self) -> Blame:
        rng = np.random.default_rng(self.seed)
        ranks = range(self.dp * self.tp)
        self.records = {rank: [] for rank in ranks}
        rows = [list(range(at * self.tp, (at + 1) * self.tp)) for at in range(self.dp)]
        columns = [list(range(at, self.dp * self.tp, self.tp)) for at in range(self.tp)]
        now = dict.fromkeys(ranks, 1e9)
        for step in range(self.steps):
            pending: dict[int, list[tuple[float, float]]] = {rank: [] for rank in ranks}
            for layer in range(2 * LAYERS):
                for rank in ranks:
                    now[rank] += LAYER_US * float(rng.lognormal(0, self.noise)) + self.late(rank, step, layer)
                for group in rows:
                    self._meet("tp", group, now, step, layer)
                if self.overlapped and layer >= LAYERS:
                    self._reduce(columns, now, step, layer, pending)
            if self.overlapped:
                for rank, asked in pending.items():
                    now[rank] = max(now[rank], *(end for _, end in asked))
            else:
                for group in columns:
                    self._meet("dp", group, now, step, 0)
        matching = match_collectives(self.records, world_size=len(ranks))
        assert not matching.unmatched
        return assign_blame(matching.matches, fit_clocks(matching.matches), list(ranks))

    def _meet(self, name: str, group: list[int], now: dict[int, float], step: int, index: int) -> None:
        end = max(now[rank] for rank in group) + 300
        for rank in group:
            self._record(rank, name, group, (step, index), (now[rank], now[rank], end))
            now[rank] = end

    def _reduce(
        self,
        columns: list[list[int]],
        now: dict[int, float],
        step: int,
        layer: int,
        pending: dict[int, list[tuple[float, float]]],
    ) -> None:
        """All-reduce a bucket on a separate stream: it begins when the previous one is over, and compute continues."""
        for group in columns:
            arrive = {rank: max(now[rank], *(end for _, end in pending[rank]), 0.0) for rank in group}
            end = max(arrive.values()) + 300
            for rank in group:
                pending[rank].append((arrive[rank], end))
                # The rest of the pass hides it; after the last layer nothing hides it any more.
                rest = (2 * LAYERS - 1 - layer) * LAYER_US
                hidden = [(0.0, min(end - now[rank], rest))] if rest else []
                self._record(rank, "dp", group, (step, layer), (now[rank], arrive[rank], end), hidden)

    def _record(  # noqa: PLR0917  # what, and when
        self,
        rank: int,
        name: str,
        group: list[int],
        at: tuple[int, int],
        times: tuple[float, float, float],
        hidden: list[tuple[float, float]] | None = None,
    ) -> None:
        skew = self.skew_us.get(rank, 0)
        asked, arrive, end = times
        step, index = at
        self.records[rank].append(
            CollectiveRecord(
                step=step,
                group=name,
                group_ranks=group,
                index=index,
                op="all_reduce",
                enqueue_unix_ns=round((asked + skew) * 1000),
                start_unix_ns=round((arrive + skew) * 1000),
                end_unix_ns=round((end + skew) * 1000),
                stream=7 if name == "tp" else 9,
                compute_spans_us=hidden or [],
            )
        )


def always(culprit: int, us: float, at: int) -> Callable[[int, int, int], float]:
    return lambda rank, _step, layer: us if rank == culprit and layer == at else 0.0


LAYOUTS = [(2, 2), (4, 2), (2, 4), (4, 4), pytest.param(8, 8, marks=[pytest.mark.full, pytest.mark.slow])]


@pytest.mark.slow
@pytest.mark.parametrize(("dp", "tp"), LAYOUTS)
@pytest.mark.parametrize("layer", [0, 5])
@pytest.mark.parametrize("overlapped", [False, True])
def test_origin_of_a_delay_is_charged_and_its_victims_are_not(dp: int, tp: int, layer: int, overlapped: bool) -> None:
    world = dp * tp
    for culprit in {0, 1, world // 2, world - 1}:
        blame = Hybrid(dp, tp, always(culprit, 6_000, layer), overlapped=overlapped, seed=culprit).blame()
        share = blame.share(culprit)
        assert share is not None
        assert share > 0.85, (culprit, blame.imposed_us)
        others = max(value for rank, value in blame.imposed_us.items() if rank != culprit)
        assert others < 0.1 * blame.imposed_us[culprit]
        slow = find_late(blame, 12 * 8 * LAYER_US)
        assert slow is not None
        assert (slow.ranks, slow.pattern) == ([culprit], "fixed")


@pytest.mark.slow
@pytest.mark.parametrize("overlapped", [False, True])
def test_steps_without_an_origin_name_no_rank(overlapped: bool) -> None:
    for seed in range(8):
        blame = Hybrid(4, 2, overlapped=overlapped, seed=seed).blame()
        assert find_late(blame, 12 * 8 * LAYER_US) is None


def test_one_rank_of_one_group_is_charged_for_the_waits_of_all_ranks() -> None:
    blame = Hybrid(2, 4, always(5, 6_000, 1), noise=0.0).blame()
    # Three peers of its tensor-parallel group and four others: the delay has reached every rank by each row's second meeting.
    assert blame.imposed_us == {rank: pytest.approx(12 * 7 * 6_000 if rank == 5 else 0) for rank in range(8)}
    # Charged in its own tensor-parallel group and in the four data-parallel ones, three of which do not contain it.
    assert set(blame.pairs.groups) == {("tp", (4, 5, 6, 7)), *(("dp", (at, at + 4)) for at in range(4))}
    assert set(blame.pairs.origin.tolist()) == {5}


def test_skewed_clocks_do_not_change_the_imposed_wait() -> None:
    def imposed(skew: dict[int, int]) -> dict[int, float]:
        return Hybrid(2, 2, always(1, 6_000, 0), skew_us=skew).blame().imposed_us

    assert imposed({2: 40_000, 3: -7_000}) == pytest.approx(imposed({}), abs=1)


def test_two_origins_in_different_groups_are_each_charged() -> None:
    late = lambda rank, _step, layer: {0: 6_000.0, 7: 9_000.0}.get(rank, 0.0) if layer == 0 else 0.0  # noqa: E731
    blame = Hybrid(4, 2, late).blame()
    worst = sorted(blame.imposed_us, key=lambda rank: -blame.imposed_us[rank])
    assert worst[:2] == [7, 0]
    assert blame.imposed_us[worst[2]] < 0.1 * blame.imposed_us[0]


def test_additional_delay_by_a_victim_is_charged_to_the_victim() -> None:
    late = lambda rank, _step, layer: {(0, 0): 6_000.0, (1, 3): 4_000.0}.get((rank, layer), 0.0)  # noqa: E731
    blame = Hybrid(2, 2, late, noise=0.0).blame()
    # Rank 0 keeps 1 waiting for 6 ms, and 2 and 3 at the end; rank 1 keeps 0 waiting for 4 ms, and 2 and 3 for 4 more.
    assert blame.imposed_us[0] / 12 == pytest.approx(6_000 * 3)
    assert blame.imposed_us[1] / 12 == pytest.approx(4_000 * 3)
    assert blame.imposed_us[2] == blame.imposed_us[3] == 0


class GroupMeeting(NamedTuple):
    """Collective of some ranks, with the rank that comes last, its arrival and the waits of the others, in nanoseconds."""

    step: int
    members: tuple[int, ...]
    last: int
    when: int
    waits: dict[int, int]


def charged(meetings: Sequence[GroupMeeting], exposed: float | Sequence[float] = 1.0) -> list[dict[tuple[int, int], float]]:
    """Return the nanoseconds charged at each meeting by (origin, victim). ``exposed``: share of the waits that no compute hides.

    Each meeting has a name of its own for its group, so that its charges can be told apart.
    """
    records: dict[int, list[CollectiveRecord]] = {rank: [] for meeting in meetings for rank in meeting.members}
    shares = [exposed] * len(meetings) if isinstance(exposed, float) else exposed
    for number, (meeting, share) in enumerate(zip(meetings, shares, strict=True)):
        for rank in meeting.members:
            wait = meeting.waits.get(rank, 0)
            arrive = 10**12 + meeting.when - wait
            records[rank].append(
                CollectiveRecord(
                    step=meeting.step,
                    group=str(number),
                    group_ranks=list(meeting.members),
                    index=0,
                    op="all_reduce",
                    enqueue_unix_ns=arrive,
                    start_unix_ns=arrive,
                    end_unix_ns=arrive + wait + 10,
                    stream=7,
                    compute_spans_us=[(0.0, wait * (1 - share) / 1000)],
                )
            )
    matches = match_collectives(records).matches
    assert len(matches) == len(meetings)
    pairs = assign_blame(matches, Clocks(residual_ns=0.0), list(records)).pairs
    collected: list[dict[tuple[int, int], float]] = [{} for _ in meetings]
    columns = (pairs.group.tolist(), pairs.origin.tolist(), pairs.victim.tolist(), (pairs.imposed_us * 1000).tolist())
    for group, origin, victim, ns in zip(*columns, strict=True):
        collected[int(pairs.groups[group][0] or 0)][origin, victim] = ns
    return collected


def test_recovered_delay_is_not_charged_again() -> None:
    # Rank 0 delays 1 by 30 in their group; 1 meets 2 only 5 late, and leaves with it; then 1 itself is 20 late.
    meetings = [
        GroupMeeting(0, (0, 1), 0, 100, {1: 30}),
        GroupMeeting(0, (1, 2), 1, 200, {2: 5}),
        GroupMeeting(0, (1, 2), 1, 300, {2: 20}),
    ]
    assert charged(meetings) == [{(0, 1): 30}, {(0, 2): 5}, {(1, 2): 20}]


def test_wait_hidden_by_compute_delays_no_downstream_rank() -> None:
    meetings = [GroupMeeting(0, (0, 1), 0, 100, {1: 30}), GroupMeeting(0, (1, 2), 1, 200, {2: 30})]
    assert charged(meetings, [0.0, 1.0]) == [{(0, 1): 30}, {(1, 2): 30}]
    assert charged(meetings) == [{(0, 1): 30}, {(0, 2): 30}]


def test_delays_are_not_carried_into_the_next_step() -> None:
    meetings = [GroupMeeting(0, (0, 1), 0, 100, {1: 30}), GroupMeeting(1, (1, 2), 1, 200, {2: 30})]
    assert charged(meetings) == [{(0, 1): 30}, {(1, 2): 30}]


def test_chain_over_many_groups_leads_to_its_origin_and_cycles_end() -> None:
    chain = [GroupMeeting(0, (at, at + 1), at, 100 * at, {at + 1: 50}) for at in range(3 * MAX_ORIGINS)]
    assert charged(chain) == [{(0, at + 1): 50} for at in range(len(chain))]
    ring = [GroupMeeting(0, tuple(sorted((at % 3, (at + 1) % 3))), at % 3, 100 * at, {(at + 1) % 3: 50}) for at in range(30)]
    assert all(sum(charges.values()) == pytest.approx(50, abs=MAX_ORIGINS) for charges in charged(ring))


def test_only_the_largest_of_many_origins_are_carried_on() -> None:
    # Rank 0 waits for many others, each time a little longer, and then delays one more rank by all of that.
    others = range(2, 2 + 3 * MAX_ORIGINS)
    waits = [
        GroupMeeting(0, (0, *others), at, 10_000 * at, {0: 100 * at, **{rank: 1 for rank in others if rank != at}})
        for at in others
    ]
    total = sum(100 * at for at in others)
    charges = charged([*waits, GroupMeeting(0, (0, 1), 0, 10**7, {1: total})])[-1]
    largest = {(at, 1): 100.0 * at for at in others[-MAX_ORIGINS:] if 100 * at > 0.02 * total}
    assert charges == pytest.approx({**largest, (0, 1): total - sum(largest.values())})


@st.composite
def any_meetings(draw: st.DrawFn) -> list[GroupMeeting]:
    made = []
    for number in range(draw(st.integers(0, 12))):
        members = tuple(sorted(draw(st.sets(st.integers(0, 5), min_size=2, max_size=4))))
        last = draw(st.sampled_from(members))
        waits = {rank: draw(st.integers(1, 1000)) for rank in members if rank != last and draw(st.booleans())}
        when = 10_000 * draw(st.integers(0, 99)) + number
        made.append(GroupMeeting(draw(st.integers(0, 1)), members, last, when, waits))
    return made


@given(any_meetings(), st.sampled_from([0.0, 0.3, 1.0]))
def test_wait_is_charged_completely_and_never_to_the_waiting_rank(meetings: list[GroupMeeting], exposed: float) -> None:
    for meeting, charges in zip(meetings, charged(meetings, exposed), strict=True):
        waited = dict.fromkeys(meeting.waits, 0.0)
        for (origin, victim), ns in charges.items():
            assert victim != origin
            assert ns >= 0
            waited[victim] += ns
        # Each part is rounded.
        assert waited == pytest.approx(meeting.waits, abs=MAX_ORIGINS)
