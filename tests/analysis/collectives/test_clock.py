"""Clocks with an offset, drift, wander or settings, recovered from the ends of collectives alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.analysis.planted_clocks import SECOND, START, Floats, Job, Planted, apart, windows

from rankscope.analysis.collectives.clock import Clocks, fit_clocks
from rankscope.analysis.collectives.clock_series import ClockCourse, at_times, fit_series
from rankscope.analysis.collectives.waits.blame import Blame, assign_blame
from rankscope.analysis.inference.judging.late_ranks import find_late, late_suspect

HOURS = windows(10, 24, gap=600 * SECOND, within=0.3 * SECOND)
"""Ends and steps of ten windows, one every ten minutes."""
MINUTE = windows(1, 120, gap=0, within=60 * SECOND)
"""Ends and steps of one long trace."""

US = 1_000
MS = 1_000_000

seeds = st.integers(0, 2**31)
offsets = st.floats(-2 * SECOND, 2 * SECOND)
drifts = st.floats(-200, 200)
when = st.sampled_from(["hours", "minute"])


def job(clocks: list[Planted], times: str = "hours", **given: object) -> Job:
    ends, steps = HOURS if times == "hours" else MINUTE
    return Job(clocks, ends, steps, **given)  # type: ignore[arg-type]


def span_s(planted: Job) -> float:
    return float(planted.ends[-1] - planted.ends[0]) / SECOND


def drift(clocks: Clocks, rank: int) -> float:
    return clocks.rank_clocks[rank].drift_ppm or 0.0


@settings(max_examples=15)
@given(st.lists(st.builds(Planted, offset=offsets, ppm=drifts), min_size=2, max_size=5), when, st.floats(0, 50 * US), seeds)
def test_offsets_and_drifts_are_fitted_for_any_order_of_arrival(
    planted: list[Planted], times: str, jitter: float, seed: int
) -> None:
    # given ranks that may arrive late at any collective: that changes when it ends, but all ranks still see the same end
    rng = np.random.default_rng(seed)
    lag = rng.exponential(5 * MS, ((HOURS if times == "hours" else MINUTE)[0].shape[0], len(planted)))
    planted_job = job(planted, times, jitter=jitter, seed=seed, lag=lag)
    # when
    clocks = fit_clocks(planted_job.matches())
    # then the corrected times of a moment are closer together than the reported uncertainty
    assert clocks.residual_ns is not None
    assert clocks.residual_ns <= 12 * jitter + US
    assert np.abs(apart(planted_job, clocks)).max() <= clocks.residual_ns + US
    # Drift is relative to the common clock, which drifts with the others: 200 ppm of 200 ppm.
    unsure = 4e-3 * (clocks.residual_ns + US) / span_s(planted_job) + 0.1
    for rank, clock in enumerate(planted):
        assert drift(clocks, rank) - drift(clocks, 0) == pytest.approx(clock.ppm - planted[0].ppm, abs=unsure)


@settings(max_examples=15)
@given(
    rank=st.integers(0, 4),
    by=st.floats(50 * MS, 2 * SECOND),
    back=st.booleans(),
    where=st.sampled_from([("hours", 54), ("hours", 120), ("hours", 157), ("minute", 6), ("minute", 60), ("minute", 114)]),
    jitter=st.floats(0, 20 * US),
    seed=seeds,
)
@example(rank=0, by=50.0 * MS, back=False, where=("hours", 120), jitter=0.0, seed=0)
def test_clock_that_was_set_shows_no_drift(
    *, rank: int, by: float, back: bool, where: tuple[str, int], jitter: float, seed: int
) -> None:
    # given five clocks, one of which is set before one of the collectives, for example by NTP
    times, at = where
    ends = (HOURS if times == "hours" else MINUTE)[0]
    moment = (ends[at - 1] + ends[at]) / 2
    planted = [Planted(MS * number, steps=[(moment, -by if back else by)] if number == rank else ()) for number in range(5)]
    number = job(planted, times, jitter=jitter, seed=seed)
    # when
    clocks = fit_clocks(number.matches())
    # then none has more drift than chance finds in the jitter, which happens for one clock in some hundreds
    for other, value in clocks.rank_clocks.items():
        if other != rank or where != ("hours", 120):
            assert abs(value.drift_ppm or 0.0) * span_s(number) * US <= 6 * jitter
    slewed = 1e-3 * 600 * SECOND  # as far as a clock is slewed in the ten minutes between two windows
    one_is_set = [1 + (other == rank) for other in range(5)]
    if where == ("hours", 120) and by < 1.01 * slewed:
        # Between two windows that are far apart, a setting cannot be distinguished from slewing, and it does not matter.
        settings_found = [value.settings for value in clocks.rank_clocks.values()]
        assert settings_found == [1] * 5 or (by > 0.99 * slewed and settings_found == one_is_set)
    else:
        assert [value.settings for value in clocks.rank_clocks.values()] == one_is_set
    # A clock that was set back shows some times twice: whether these are before or after the setting is unknown.
    twice = (ends < moment) & (ends >= moment - by - MS) if back else np.zeros(len(ends), dtype=bool)
    assert clocks.residual_ns is not None
    # An unrecognised setting is spread over the ten minutes between the windows, so a small part falls into the windows.
    spread = by * 0.3 / 600 if where == ("hours", 120) else 0.0
    assert np.abs(apart(number, clocks)[~twice]).max() <= clocks.residual_ns + spread + US


@settings(max_examples=10)
@given(st.floats(0.5 * MS, 20 * MS), st.floats(4_000, 20_000), seeds)
def test_wandering_clock_is_followed_from_window_to_window(size: float, period_s: float, seed: int) -> None:
    def wander(time: Floats) -> Floats:
        return size * np.sin(2 * np.pi * time / (period_s * SECOND))

    planted_job = job([Planted(), Planted(MS, 20, wander=wander), Planted(-MS)], seed=seed)
    clocks = fit_clocks(planted_job.matches())
    assert clocks.residual_ns is not None
    assert clocks.residual_ns <= 12 * planted_job.jitter
    assert np.quantile(np.abs(apart(planted_job, clocks)), 0.95) <= clocks.residual_ns


def test_offset_is_interpolated_between_windows() -> None:
    # given a clock that is slewed by 400 ppm for the second of three hours
    def slewed(time: Floats) -> Floats:
        return 4e-4 * np.clip(time - 3_600 * SECOND, 0, 3_600 * SECOND)

    ends, steps = windows(19, 24, gap=600 * SECOND, within=0.3 * SECOND)
    planted = [Planted(), Planted(5 * MS, wander=slewed), Planted(9 * MS)]
    clocks = fit_clocks(Job(planted, ends, steps).matches())
    # when corrected at times without profiled steps, away from where the slewing began and stopped
    for at in (1_000.0, 5_300.0, 9_999.0):
        ahead = planted[1].ahead(np.array([at * SECOND]))[0]
        result = clocks.correct(1, round(START + at * SECOND + ahead)) - clocks.correct(0, round(START + at * SECOND))
        assert abs(result) < 10 * US


@pytest.mark.parametrize(
    ("ends", "ppm"),
    [
        (np.linspace(0, 10 * SECOND, 6), 100.0),  # too few
        (np.linspace(0, 0.05 * SECOND, 500), 100.0),  # too short
        (np.linspace(0, 2 * SECOND, 40), 0.05),  # too little, for ends that are 3 us off
    ],
)
def test_insufficient_data_shows_no_drift(ends: Floats, ppm: float) -> None:
    clocks = fit_clocks(Job([Planted(), Planted(MS, ppm), Planted()], ends, np.zeros(len(ends), dtype=np.int64)).matches())
    assert {clock.drift_ppm for clock in clocks.rank_clocks.values()} == {None}


@given(seeds, st.sampled_from(["laplace", "normal", "cauchy"]), st.integers(20, 300))
def test_noise_alone_shows_no_drift_and_no_clock_step(seed: int, kind: str, count: int) -> None:
    rng = np.random.default_rng(seed)
    noise = {"laplace": rng.laplace(0, 1, count), "normal": rng.normal(0, 1, count), "cauchy": rng.standard_cauchy(count)}[kind]
    at = np.array([1e8 * number for number in range(count)])
    (series,) = fit_series(at, 30 * US * noise, np.arange(count) // 20)
    assert series.drift is None or abs(series.drift) * 1e8 * count < 6 * 30 * US
    assert np.abs(at_times([series], at)).max() < 100 * US


@given(seeds, st.floats(10, 200))
def test_late_ends_of_some_collectives_do_not_hide_the_drift(seed: int, ppm: float) -> None:
    # given one end in thirty that a descheduled rank saw 0.1 s later
    rng = np.random.default_rng(seed)
    at: Floats = np.array([5e8 * number for number in range(120)])
    late = 1e8 * (np.arange(120) % 30 == seed % 30)
    (series,) = fit_series(at, ppm * 1e-6 * at + rng.laplace(0, 3 * US, 120) + late, np.zeros(120, dtype=np.int64))
    assert series.drift == pytest.approx(ppm * 1e-6, abs=1e-6)


readings = st.lists(st.integers(-(10**7), 10**7), min_size=1, max_size=60)


@given(readings, st.integers(-(10**15), 10**15))
def test_constant_offset_shifts_the_fit_and_changes_nothing_else(values: list[int], constant: int) -> None:
    at: Floats = np.array([1e8 * number for number in range(len(values))])
    window = np.arange(len(values)) // 7
    plain = fit_series(at, np.array(values, dtype=float), window)
    moved = fit_series(at, np.array(values, dtype=float) + constant, window)
    assert [len(item.at) for item in moved] == [len(item.at) for item in plain]
    assert at_times(moved, at) - constant == pytest.approx(at_times(plain, at), abs=1)


def test_ranks_of_one_host_have_one_clock() -> None:
    fast = Planted(3 * MS, 50)
    planted_job = job([Planted(), Planted(), fast, fast])
    clocks = fit_clocks(planted_job.matches(), {0: "a", 1: "a", 2: "b", 3: "b"})
    assert clocks.offset_ns[0] == clocks.offset_ns[1]
    assert clocks.courses[2] == clocks.courses[3]
    assert drift(clocks, 2) - drift(clocks, 0) == pytest.approx(50, abs=0.1)
    # With one clock there is nothing to correct.
    alone = fit_clocks(planted_job.matches(), dict.fromkeys(range(4), "a"))
    assert (set(alone.offset_ns.values()), alone.courses) == ({0}, {})
    assert {item.drift_ppm for item in alone.rank_clocks.values()} == {None}


def test_clocks_linked_by_a_chain_of_groups_are_compared_along_the_chain() -> None:
    planted = [Planted(rank**2 * MS, 10.0 * (-rank if rank % 2 else rank)) for rank in range(24)]
    ends, steps = windows(20, 69, gap=600 * SECOND, within=0.3 * SECOND)
    result = Job(planted, ends, steps, groups=[[rank, rank + 1] for rank in range(23)])
    clocks = fit_clocks(result.matches())
    assert np.abs(apart(result, clocks)).max() < 30 * US
    assert drift(clocks, 23) - drift(clocks, 0) == pytest.approx(-230, abs=0.1)


def test_clock_without_a_comparison_is_left_uncorrected() -> None:
    planted_job = job([Planted(rank * SECOND, 50.0 * rank) for rank in range(5)], groups=[[0, 1], [2, 3]])
    clocks = fit_clocks(planted_job.matches(), {4: "e"})
    assert drift(clocks, 1) - drift(clocks, 0) == pytest.approx(50, abs=0.1)
    assert drift(clocks, 3) - drift(clocks, 2) == pytest.approx(50, abs=0.1)
    assert clocks.correct(4, START) == START
    assert 4 not in clocks.rank_clocks


knots = st.lists(st.tuples(st.integers(1, 10**12), st.integers(-500, 500)), min_size=1, max_size=8)


@given(knots, st.integers(-(10**9), 10**9), st.lists(st.integers(-(10**12), 10**13), min_size=1, max_size=20))
def test_clock_course_is_invertible_and_keeps_the_order_of_times(
    gaps: list[tuple[int, int]], offset: int, times: list[int]
) -> None:
    at, offsets = [START], [offset]
    for gap, ppm in gaps:
        at.append(at[-1] + gap)
        offsets.append(offsets[-1] + gap * ppm // 10**6)
    course = ClockCourse(tuple(at), tuple(offsets))
    common = [START + time_ - course.offset_at(START + time_) for time_ in sorted(times)]
    assert common == sorted(common)
    for here, time_ in zip(sorted(times), common, strict=True):
        assert abs(course.seen_at(time_) - START - here) <= 1
    many = course.offsets(np.array([START + time_ for time_ in times]))
    assert many == pytest.approx([course.offset_at(START + time_) for time_ in times], abs=1.001)


def test_extreme_times_are_corrected_without_an_error() -> None:
    clocks = fit_clocks(job([Planted(), Planted(4e18, 100), Planted(-1.7e18, steps=[(2e12, -1e18)])]).matches())
    for rank in range(3):
        assert isinstance(clocks.correct(rank, 0), int)
        assert isinstance(clocks.correct(rank, 2**62), int)
        assert isinstance(clocks.seen_at(rank, START), int)


def blame_of(job: Job, hosts: dict[int, str] | None = None) -> Blame:
    matches = job.matches()
    return assign_blame(matches, fit_clocks(matches, hosts), range(len(job.clocks)))


def lags(late: int | None, by: float, noise: float, *, seed: int = 0, ranks: int = 4) -> Floats:
    lag = np.random.default_rng(seed).exponential(noise, (len(HOURS[0]), ranks))
    if late is not None:
        lag[:, late] += by
    return lag


WINDOW_US = 240 * 2_000.0
"""Duration of all collectives, in microseconds."""


@settings(max_examples=5)
@given(
    late=st.sampled_from([None, 0, 3]),
    whose=st.integers(0, 3),
    offset=offsets,
    ppm=st.sampled_from([0.0, 50.0, -50.0]),
    was_set=st.booleans(),
    on_cpu=st.booleans(),
    seed=seeds,
)
def test_clock_offsets_and_drifts_change_no_verdict(
    *, late: int | None, whose: int, offset: float, ppm: float, was_set: bool, on_cpu: bool, seed: int
) -> None:
    # given the same job, once on clocks that agree, once with one that does not
    lag = lags(late, 400 * US, 50 * US, seed=seed)
    off = Planted(offset, ppm, [(2_000 * SECOND, 30 * MS)] if was_set else ())
    hosts = {rank: f"n{rank}" for rank in range(4)}
    right = blame_of(job([Planted()] * 4, jitter=5 * US, lag=lag, on_cpu=on_cpu, seed=seed), hosts)
    clocks = [off if rank == whose else Planted() for rank in range(4)]
    wrong = blame_of(job(clocks, jitter=5 * US, lag=lag, on_cpu=on_cpu, seed=seed), hosts)
    # then the result is the same
    expected, result = find_late(right, WINDOW_US), find_late(wrong, WINDOW_US)
    assert (expected is None) == (late is None)
    assert late_suspect(wrong, WINDOW_US) == late_suspect(right, WINDOW_US)
    if expected is not None:
        assert result is not None
        assert (result.ranks, result.pattern) == (expected.ranks, expected.pattern) == ([late], "fixed")
        assert result.gain_us == pytest.approx(expected.gain_us, rel=0.05)
    else:
        assert result is None


@pytest.mark.parametrize("on_cpu", [True, False])
def test_waits_below_the_clock_residual_are_charged_to_no_rank(on_cpu: bool) -> None:
    # given a rank that is always last by 0.2 ms, and ends that differ by more
    planted_job = job([Planted()] * 4, jitter=400 * US, lag=lags(2, 200 * US, 0), transfer=8 * MS)
    clocks = fit_clocks(planted_job.matches())
    assert clocks.residual_ns is not None
    assert clocks.residual_ns > 400 * US
    # then nothing is charged to it, though chance would be excluded and the cost be high enough
    blame = blame_of(planted_job)
    assert set(blame.imposed_us.values()) == {0.0}
    assert not len(blame.pairs)
    assert not blame.waits.gain_us.any()
    assert not blame.waits.waited_us.any()
    assert find_late(blame, 240 * 500.0) is None
    assert late_suspect(blame, 240 * 500.0) is None
    # and it is charged once the same lag exceeds the residual
    sharp = job([Planted()] * 4, jitter=5 * US, lag=lags(2, 200 * US, 0), on_cpu=on_cpu)
    named = find_late(blame_of(sharp), 240 * 500.0)
    assert named is not None
    assert named.ranks == [2]
