"""Kinds of simulated fleets: noise, the fault, and the right answer. Measures nothing by itself; see fleet_truth.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import numpy as np
from fleets import STEP_US, Expected, Fleet, Floats, Mask, host_of
from make_run import RANKS_PER_HOST

Rng = np.random.Generator
Kind = Callable[[Rng], Fleet]

SCATTER: Final = 0.03
"""Usual noise of a step's own time, as a share of it."""
BIAS: Final = 0.005
"""Lasting difference between healthy ranks."""
SLOW_US: Final = 30_000.0


def noise(
    rng: Rng, ranks: int, steps: int = 1000, *, scatter: float = SCATTER, lasts: float = 1, of_hosts: bool = False
) -> Floats:
    """Return healthy own times. ``lasts``: number of steps that noise lasts. ``of_hosts``: the ranks of a host share it."""
    scattered = rng.normal(size=(ranks, steps))
    if of_hosts:
        scattered = scattered[np.arange(ranks) // RANKS_PER_HOST * RANKS_PER_HOST]
    keep = (lasts - 1) / (lasts + 1)
    for step in range(1, steps if keep else 0):
        scattered[:, step] = keep * scattered[:, step - 1] + np.sqrt(1 - keep**2) * scattered[:, step]
    bias = 1 + rng.normal(0, min(BIAS, scatter), size=(ranks, 1))
    return STEP_US * bias * np.exp(scatter * scattered)


def slow(base: Floats, when: dict[int, Mask], rng: Rng, by_us: float = SLOW_US) -> Floats:
    """Return the additional times [ranks, steps] of ranks that are slow in some steps each."""
    fault = np.zeros_like(base)
    for rank, steps in when.items():
        fault[rank, steps] = by_us * np.exp(rng.normal(0, 0.05, int(steps.sum())))
    return fault


def names(ranks: Iterable[int], hosts: Iterable[int] = (), *, undecided: bool = False, or_rotating: bool = False) -> Expected:
    """Return the answer that names ranks, and hosts by number."""
    of_hosts = tuple(host_of(host * RANKS_PER_HOST) for host in sorted(hosts))
    return Expected("names", tuple(sorted(ranks)), of_hosts, undecided=undecided, or_rotating=or_rotating)


def members(host: int) -> range:
    """Return the ranks of a host."""
    return range(host * RANKS_PER_HOST, (host + 1) * RANKS_PER_HOST)


# When a rank is slow: masks of steps


def always(steps: int) -> Mask:
    return np.ones(steps, bool)


def since(first: int, steps: int) -> Mask:
    return np.arange(steps) >= first


def bursts(rng: Rng, steps: int, length: int, share: float = 0.5) -> Mask:
    """Return bursts of ``length`` steps at random places, which cover ``share`` of the steps."""
    blocks = steps // length
    chosen = rng.permutation(blocks) < round(share * blocks)
    return np.roll(np.resize(np.repeat(chosen, length), steps), int(rng.integers(length)))


def random_steps(rng: Rng, steps: int, share: float) -> Mask:
    return rng.permutation(steps) < round(share * steps)


def periodic(rng: Rng, steps: int, share: float) -> Mask:
    """Return steps at equal distances, as far as they can be."""
    turns = np.floor((np.arange(steps + 1) + int(rng.integers(steps))) * share + 1e-9)
    chosen: Mask = turns[1:] > turns[:-1]
    return chosen


# Healthy fleets


def no_fault(steps: int = 1000) -> Expected:
    """Return the answer that no rank is at fault. A short run may be too short even for that."""
    return Expected("none", undecided=steps < 200)


def healthy(
    rng: Rng, ranks: int, steps: int = 1000, *, scatter: float = SCATTER, lasts: float = 1, of_hosts: bool = False
) -> Fleet:
    return Fleet(noise(rng, ranks, steps, scatter=scatter, lasts=lasts, of_hosts=of_hosts), no_fault(steps))


def heavy_tails(rng: Rng, ranks: int, steps: int = 1000) -> Fleet:
    """Return a fleet in which 3 % of the records have a pause, of two steps on average."""
    base = noise(rng, ranks, steps)
    pauses = (rng.random(base.shape) < 0.03) * rng.exponential(2 * STEP_US, base.shape)
    return Fleet(base, no_fault(steps), pauses=pauses)


def pauses_of_any(
    rng: Rng, ranks: int, share: float, *, steps: int = 1000, shortest_us: float = 50_000.0, longest_us: float = 150_000.0
) -> Fleet:
    """Return a fleet in which some rank, any, pauses in a share of the steps."""
    base = noise(rng, ranks, steps)
    return Fleet(base, no_fault(steps), pauses=moving_pauses(rng, base, share, shortest_us, longest_us))


def moving_pauses(rng: Rng, base: Floats, share: float, shortest_us: float, longest_us: float) -> Floats:
    pauses = np.zeros_like(base)
    steps = np.flatnonzero(random_steps(rng, base.shape[1], share))
    pauses[rng.integers(0, len(base), len(steps)), steps] = rng.uniform(shortest_us, longest_us, len(steps))
    return pauses


def collections(rng: Rng, ranks: int) -> Fleet:
    """Return a fleet whose ranks collect garbage at every eighth step each, at other steps than their peers."""
    base = noise(rng, ranks, 400)
    first = rng.permutation(8)[:ranks, None]
    pauses = ((np.arange(400) + first) % 8 == 0) * rng.uniform(300_000, 500_000, base.shape)
    return Fleet(base, Expected("rotating", cause="gc"), pauses=pauses, of_collections=True)


# Slow ranks


def slow_ranks(rng: Rng, ranks: int, count: int = 1, steps: int = 1000, by_us: float = SLOW_US) -> Fleet:
    """Return a fleet with some ranks that are always slow, on different hosts as far as there are enough."""
    base = noise(rng, ranks, steps)
    culprits = spread(rng, ranks, count)
    return Fleet(base, names(culprits), fault=slow(base, {rank: always(steps) for rank in culprits}, rng, by_us))


def spread(rng: Rng, ranks: int, count: int) -> list[int]:
    """Return random ranks, as few as possible on the same host."""
    order = rng.permutation(ranks).tolist()
    hosts = [rank // RANKS_PER_HOST for rank in order]
    place_on_host = [hosts[:place].count(host) for place, host in enumerate(hosts)]
    return [rank for _, rank in sorted(zip(place_on_host, order, strict=True), key=lambda pair: pair[0])[:count]]


def one_rank(rng: Rng, when: Callable[[int], Mask], ranks: int = 64, by_us: float = SLOW_US) -> Fleet:
    """Return a fleet with one rank that is slow in some of its steps."""
    base = noise(rng, ranks)
    rank = int(rng.integers(ranks))
    return Fleet(base, names([rank]), fault=slow(base, {rank: when(base.shape[1])}, rng, by_us))


def in_part_of_the_steps(rng: Rng, share: float, how: str, ranks: int = 64) -> Fleet:
    """Return a fleet with one rank that is slow in a share of the steps. Few slow steps are slower, so that healing them pays."""
    when = {
        "random": lambda steps: random_steps(rng, steps, share),
        "bursts": lambda steps: bursts(rng, steps, 20, share),
        "periodic": lambda steps: periodic(rng, steps, share),
    }[how]
    return one_rank(rng, when, ranks, by_us=80_000.0 if share < 0.2 else SLOW_US)


def pair(rng: Rng, scatter: float, first: int, by_us: float) -> Fleet:
    """Return a fleet of two ranks, one of which is slow from a step on."""
    base = noise(rng, 2, scatter=scatter)
    rank = int(rng.integers(2))
    return Fleet(base, names([rank]), fault=slow(base, {rank: since(first, 1000)}, rng, by_us))


def every_second_step(rng: Rng, *, together: bool) -> Fleet:
    """Return a fleet with four slow GPUs of four hosts, at every second step: the same ones, or each at its own."""
    base = noise(rng, 64)
    culprits = spread(rng, 64, 4)
    odd = rng.permutation([0, 0, 1, 1]) if not together else np.zeros(4, int)
    when = {rank: np.arange(1000) % 2 == first for rank, first in zip(culprits, odd.tolist(), strict=True)}
    return Fleet(base, names(culprits), fault=slow(base, when, rng))


def in_bursts(rng: Rng, ranks: int, count: int, length: int) -> Fleet:
    """Return a fleet with slow ranks of different hosts in bursts of their own, half of the time."""
    base = noise(rng, ranks)
    culprits = spread(rng, ranks, count)
    return Fleet(base, names(culprits), fault=slow(base, {rank: bursts(rng, 1000, length) for rank in culprits}, rng))


def beside_pauses(rng: Rng, by_us: float, *, undecided: bool = False) -> Fleet:
    """Return a fleet with a rank that is slow in 30 % of the steps, beside pauses of random other ranks in half of the steps."""
    base = noise(rng, 64)
    rank = int(rng.integers(64))
    pauses = moving_pauses(rng, base, 0.5, 55_000.0, 65_000.0)
    pauses[rank] = 0
    fault = slow(base, {rank: random_steps(rng, 1000, 0.3)}, rng, by_us)
    return Fleet(base, names([rank], undecided=undecided), fault=fault, pauses=pauses)


def local_steps(rng: Rng, every: int, *, waits_known: bool = True) -> Fleet:
    """Return a fleet whose ranks average their parameters once in several steps; one is 20 ms slower in each step."""
    base = noise(rng, 8)
    rank = int(rng.integers(8))
    fault = slow(base, {rank: always(1000)}, rng, 20_000.0)
    return Fleet(base, names([rank]), fault=fault, meets_every=every, waits_known=waits_known)


# Hosts


def slow_hosts(rng: Rng, ranks: int = 64, count: int = 1, when: Callable[[int], Mask] = always) -> Fleet:
    """Return a fleet with hosts whose ranks are slow, each when ``when`` says."""
    base = noise(rng, ranks)
    hosts = rng.permutation(ranks // RANKS_PER_HOST)[:count].tolist()
    culprits = [rank for host in hosts for rank in members(host)]
    return Fleet(base, names(culprits, hosts), fault=slow(base, {rank: when(1000) for rank in culprits}, rng))


def part_of_a_host(rng: Rng, count: int) -> Fleet:
    """Return a fleet with some slow ranks of one host, which is at fault as a whole if they are most of its ranks."""
    base = noise(rng, 64)
    host = int(rng.integers(8))
    culprits = rng.permutation(members(host))[:count].tolist()
    hosts = [host] if 2 * count > RANKS_PER_HOST else []
    return Fleet(base, names(culprits, hosts), fault=slow(base, {rank: always(1000) for rank in culprits}, rng))


def ranks_in_turn(rng: Rng, length: int) -> Fleet:
    """Return a fleet with a host of which one rank at a time is slow, for some steps, in random order."""
    base = noise(rng, 64)
    host = int(rng.integers(8))
    turns = np.concatenate([rng.permutation(RANKS_PER_HOST) for _ in range(1000 // length // RANKS_PER_HOST + 1)])
    turn = np.repeat(turns, length)[:1000]
    when = {rank: turn == place for place, rank in enumerate(members(host))}
    return Fleet(base, names(members(host), [host]), fault=slow(base, when, rng))


def host_in_bursts(rng: Rng, ranks: int, length: int) -> Fleet:
    """Return a fleet with a host whose GPUs are slow half of the time, each in bursts of its own."""
    return slow_hosts(rng, ranks, when=lambda steps: bursts(rng, steps, length))


def drifting_host(rng: Rng) -> Fleet:
    """Return a fleet with a host that heats up: it gets slower over the run, from nothing to 40 ms."""
    base = noise(rng, 64)
    host = int(rng.integers(8))
    fault = slow(base, {rank: always(1000) for rank in members(host)}, rng, 40_000.0) * np.linspace(0, 1, 1000)
    return Fleet(base, names(members(host), [host]), fault=fault)


def slow_switch(rng: Rng) -> Fleet:
    """Return a fleet with a host whose ranks arrive 25 ms late, all of them at the same time."""
    base = noise(rng, 64)
    host = int(rng.integers(8))
    fault = np.zeros_like(base)
    fault[members(host)] = 25_000.0 * np.exp(rng.normal(0, 0.05, 1000))
    return Fleet(base, names(members(host), [host]), fault=fault)


def hosts_in_turn(rng: Rng) -> Fleet:
    """Return a fleet in which four hosts of eight are slow for 100 steps each, in turn, all their ranks together."""
    base = noise(rng, 64)
    hosts = rng.permutation(8)[:4].tolist()
    when = {rank: np.arange(1000) // 100 % 4 == turn for turn, host in enumerate(hosts) for rank in members(host)}
    return Fleet(base, names(list(when), hosts, or_rotating=True), fault=slow(base, when, rng))


# Records that are missing, and runs that change


def lost_records(rng: Rng, share: float) -> Fleet:
    """Return a fleet of 256 ranks, one of them slow, with some records of any rank missing."""
    fleet = one_rank(rng, always, 256, by_us=0.4 * STEP_US)
    return with_missing(fleet, rng.random(fleet.shape) < share)


def with_missing(fleet: Fleet, missing: Mask) -> Fleet:
    return Fleet(fleet.base, fleet.expected, fault=fleet.fault, missing=missing)


def own_records_lost(rng: Rng) -> Fleet:
    """Return a fleet whose slow rank lacks a fifth of its records."""
    fleet = one_rank(rng, always)
    missing = np.zeros(fleet.shape, bool)
    missing[fleet.expected.ranks[0]] = rng.random(1000) < 0.2
    return with_missing(fleet, missing)


def ranks_lost(rng: Rng, *, folders: bool) -> Fleet:
    """Return a fleet of 64 ranks, one slow, and without any record of 10 others. ``folders``: those have left their identity."""
    fleet = one_rank(rng, always)
    others = [rank for rank in rng.permutation(64).tolist() if rank not in fleet.expected.ranks][:10]
    if not folders:
        return Fleet(fleet.base, fleet.expected, fault=fleet.fault, absent=tuple(others))
    missing = np.zeros(fleet.shape, bool)
    missing[others] = True
    return with_missing(fleet, missing)


def culprit_lost(rng: Rng) -> Fleet:
    """Return a fleet of 4 ranks, one of which makes the others wait for 180 ms and left nothing."""
    base = noise(rng, 4)
    rank = int(rng.integers(4))
    expected = names([rank], undecided=True)
    return Fleet(base, expected, fault=slow(base, {rank: always(1000)}, rng, 180_000.0), absent=(rank,))


def replaced(rng: Rng) -> Fleet:
    """Return a fleet with a rank that was slow until its node was replaced, in the middle of the run."""
    return one_rank(rng, lambda steps: ~since(500, steps))


def restarted(rng: Rng) -> Fleet:
    """Return two attempts with another slow rank each; the last is judged."""
    first, last = one_rank(rng, always), one_rank(rng, always)
    return Fleet(last.base, last.expected, fault=last.fault, earlier=first)


# Rare steps


def rare(steps: int, chosen: Sequence[int]) -> Mask:
    return np.isin(np.arange(steps), chosen)


def stopped_once(rng: Rng) -> Fleet:
    """Return a fleet with one step of 600 that takes 30 s, because a rank was stopped; the others take 85 ms."""
    base = noise(rng, 8, 600)
    rank, step = int(rng.integers(8)), int(rng.integers(100, 550))
    fault = np.zeros_like(base)
    fault[rank, step] = 30e6
    return Fleet(base, Expected("rare", (rank,)), fault=fault, rare=rare(600, [step]))


def checkpoints(rng: Rng) -> Fleet:
    """Return a fleet of which one rank writes a checkpoint of 4 s at every 50th of 200 steps."""
    base = noise(rng, 8, 200)
    rank, steps = int(rng.integers(8)), [49, 99, 149, 199]
    fault = np.zeros_like(base)
    fault[rank, steps] = rng.normal(4e6, 0.1e6, len(steps))
    return Fleet(
        base,
        Expected("rare", (rank,), cause="checkpoint"),
        fault=fault,
        fault_phase="between_steps",
        tags={(rank, step): "checkpoint" for step in steps},
        rare=rare(200, steps),
    )


def evaluations(rng: Rng) -> Fleet:
    """Return a fleet whose ranks all evaluate for 10 s in 4 of 400 steps."""
    base = noise(rng, 8, 400)
    steps = [99, 199, 299, 399]
    fault = np.zeros_like(base)
    fault[:, steps] = rng.normal(10e6, 0.1e6, (8, len(steps)))
    return Fleet(
        base,
        Expected("rare", cause="evaluation"),
        fault=fault,
        fault_phase="between_steps",
        tags={(rank, step): "eval" for rank in range(8) for step in steps},
        rare=rare(400, steps),
    )


HEALTHY: Final[dict[str, Kind]] = {
    **{
        f"healthy, noise {percent} %, {ranks} ranks": partial(healthy, ranks=ranks, scatter=percent / 100)
        for percent in (1, 3, 5, 20, 60)
        for ranks in (2, 4, 8, 64, 256)
        if ranks >= 8 or percent in (3, 20)
    },
    "healthy, heavy tails, 8 ranks": partial(heavy_tails, ranks=8),
    "healthy, heavy tails, 64 ranks": partial(heavy_tails, ranks=64),
    "healthy, any rank pauses in 8 % of the steps, 8 ranks": partial(pauses_of_any, ranks=8, share=0.08),
    "healthy, any rank pauses in 8 % of the steps, 64 ranks": partial(pauses_of_any, ranks=64, share=0.08),
    "healthy, noise of 20 steps, 8 ranks": partial(healthy, ranks=8, lasts=20),
    "healthy, noise of 20 steps, 64 ranks": partial(healthy, ranks=64, lasts=20),
    "healthy, noise 5 % of hosts, 64 ranks": partial(healthy, ranks=64, scatter=0.05, of_hosts=True),
    "healthy, noise 20 % of hosts and 20 steps, 64 ranks": partial(healthy, ranks=64, scatter=0.2, lasts=20, of_hosts=True),
    "healthy, 1024 ranks": partial(healthy, ranks=1024, steps=200),
    "healthy, noise 20 % of 20 steps, 8 ranks": partial(healthy, ranks=8, scatter=0.2, lasts=20),
    "healthy, noise 20 % of 20 steps, 64 ranks": partial(healthy, ranks=64, scatter=0.2, lasts=20),
    **{
        f"healthy, 35 steps{what}, {ranks} ranks": partial(fleet, ranks=ranks, steps=35)
        for what, fleet in (
            ("", healthy),
            (", noise 20 %", partial(healthy, scatter=0.2)),
            (", heavy tails", heavy_tails),
            (", any rank pauses in 8 % of the steps", partial(pauses_of_any, share=0.08)),
        )
        for ranks in (8, 64)
    },
    "no rank more than others pauses in half of the steps, 64 ranks": partial(
        pauses_of_any, ranks=64, share=0.5, shortest_us=55_000.0, longest_us=65_000.0
    ),
    "garbage collections in turn, 2 ranks": partial(collections, ranks=2),
    "garbage collections in turn, 4 ranks": partial(collections, ranks=4),
}
"""Fleets without a fault."""

FAULTY: Final[dict[str, Kind]] = {
    **{f"a slow rank, {ranks} ranks": partial(slow_ranks, ranks=ranks) for ranks in (2, 8, 64, 256)},
    "a slow rank, 1024 ranks": partial(slow_ranks, ranks=1024, steps=200),
    **{
        f"{count} slow ranks, {ranks} ranks": partial(slow_ranks, ranks=ranks, count=count)
        for count in (2, 4, 8, 20)
        for ranks in (64, 256)
    },
    "a slow host, 64 ranks": slow_hosts,
    "a slow host, 256 ranks": partial(slow_hosts, ranks=256),
    "a slow host of two, 16 ranks": partial(slow_hosts, ranks=16),
    "2 slow hosts, 64 ranks": partial(slow_hosts, count=2),
    "7 slow ranks of a host, 64 ranks": partial(part_of_a_host, count=7),
    "3 slow ranks of a host, 64 ranks": partial(part_of_a_host, count=3),
    "a host's ranks one after the other for 25 steps, 64 ranks": partial(ranks_in_turn, length=25),
    "a host's ranks one after the other for a step, 64 ranks": partial(ranks_in_turn, length=1),
    "a host in bursts of 50 steps, 64 ranks": partial(host_in_bursts, ranks=64, length=50),
    "a host in bursts of 20 steps, 32 ranks": partial(host_in_bursts, ranks=32, length=20),
    "4 ranks in bursts of 50 steps, 16 ranks": partial(in_bursts, ranks=16, count=4, length=50),
    "4 ranks of 4 hosts at every second step, 64 ranks": partial(every_second_step, together=True),
    "4 ranks of 4 hosts at every second step of their own, 64 ranks": partial(every_second_step, together=False),
    "a host drifts, 64 ranks": drifting_host,
    "a host's switch, 64 ranks": slow_switch,
    "4 hosts in turn, 64 ranks": hosts_in_turn,
    **{
        f"a rank in {percent} % of the steps, {how}, 64 ranks": partial(in_part_of_the_steps, share=percent / 100, how=how)
        for percent in (10, 30, 50, 70)
        for how in ("random", "bursts", "periodic")
    },
    "a rank of two, 30 % from step 130 on": partial(pair, scatter=SCATTER, first=130, by_us=0.3 * STEP_US),
    "a rank of two, noise 0.5 %, from step 250 on": partial(pair, scatter=0.005, first=250, by_us=SLOW_US),
    **{f"{percent} % of the records lost, 256 ranks": partial(lost_records, share=percent / 100) for percent in (1, 2, 3, 10)},
    "a fifth of the slow rank's records lost, 64 ranks": own_records_lost,
    "10 other ranks without a record, 64 ranks": partial(ranks_lost, folders=True),
    "10 other ranks without a folder, 64 ranks": partial(ranks_lost, folders=False),
    "the slow rank without a folder, 4 ranks": culprit_lost,
    # Healing saves 5 % of the step: whether it is at least that, the data need not tell.
    "a rank + 50 ms in 30 % of the steps beside moving pauses, 64 ranks": partial(beside_pauses, by_us=50_000.0, undecided=True),
    "a rank + 100 ms in 30 % of the steps beside moving pauses, 64 ranks": partial(beside_pauses, by_us=100_000.0),
    "a slow rank is replaced in mid-run, 64 ranks": replaced,
    "a restart, 64 ranks": restarted,
    "parameters averaged at every 8th step, 8 ranks": partial(local_steps, every=8),
    "parameters averaged at every 8th step, other waits unknown, 8 ranks": partial(local_steps, every=8, waits_known=False),
    "parameters averaged at every 40th step, 8 ranks": partial(local_steps, every=40),
    "parameters averaged at every 40th step, other waits unknown, 8 ranks": partial(local_steps, every=40, waits_known=False),
    "a rank is stopped once, 8 ranks": stopped_once,
    "a rank's checkpoints, 8 ranks": checkpoints,
    "evaluations of all ranks, 8 ranks": evaluations,
}
"""Fleets with a fault; each is also judged without it."""
