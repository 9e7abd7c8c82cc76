"""Fleets with a fault, each with the right answer. Measures nothing by itself; see fleet_truth.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
from benchmarks.common.make_run import RANKS_PER_HOST
from benchmarks.fleets.fleet import STEP_US, ExpectedAnswer, Floats, Mask, PlantedFleet, host_of
from benchmarks.fleets.noise import Rng, moving_pauses, noise, random_steps

SLOW_US: Final = 30_000.0
"""Additional time of a slow rank, unless stated."""


def slow(base: Floats, when: dict[int, Mask], rng: Rng, by_us: float = SLOW_US) -> Floats:
    """Return the additional times [ranks, steps] of ranks that are slow in some steps each."""
    fault = np.zeros_like(base)
    for rank, steps in when.items():
        fault[rank, steps] = by_us * np.exp(rng.normal(0, 0.05, int(steps.sum())))
    return fault


def names(
    ranks: Iterable[int], hosts: Iterable[int] = (), *, undecided: bool = False, or_rotating: bool = False
) -> ExpectedAnswer:
    """Return the answer that names ranks, and hosts by number."""
    of_hosts = tuple(host_of(host * RANKS_PER_HOST) for host in sorted(hosts))
    return ExpectedAnswer("names", tuple(sorted(ranks)), of_hosts, undecided=undecided, or_rotating=or_rotating)


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


def periodic(rng: Rng, steps: int, share: float) -> Mask:
    """Return steps at equal distances, as far as they can be."""
    turns = np.floor((np.arange(steps + 1) + int(rng.integers(steps))) * share + 1e-9)
    chosen: Mask = turns[1:] > turns[:-1]
    return chosen


# Slow ranks


def slow_ranks(rng: Rng, ranks: int, count: int = 1, steps: int = 1000, by_us: float = SLOW_US) -> PlantedFleet:
    """Return a fleet with some ranks that are always slow, on different hosts as far as there are enough."""
    base = noise(rng, ranks, steps)
    culprits = spread(rng, ranks, count)
    return PlantedFleet(base, names(culprits), fault=slow(base, {rank: always(steps) for rank in culprits}, rng, by_us))


def spread(rng: Rng, ranks: int, count: int) -> list[int]:
    """Return random ranks, as few as possible on the same host."""
    order = rng.permutation(ranks).tolist()
    hosts = [rank // RANKS_PER_HOST for rank in order]
    place_on_host = [hosts[:place].count(host) for place, host in enumerate(hosts)]
    return [rank for _, rank in sorted(zip(place_on_host, order, strict=True), key=lambda pair: pair[0])[:count]]


def one_rank(rng: Rng, when: Callable[[int], Mask], ranks: int = 64, by_us: float = SLOW_US) -> PlantedFleet:
    """Return a fleet with one rank that is slow in some of its steps."""
    base = noise(rng, ranks)
    rank = int(rng.integers(ranks))
    return PlantedFleet(base, names([rank]), fault=slow(base, {rank: when(base.shape[1])}, rng, by_us))


def in_part_of_the_steps(rng: Rng, share: float, how: str, ranks: int = 64) -> PlantedFleet:
    """Return a fleet with one rank that is slow in a share of the steps. Few slow steps are slower, so that healing them pays."""
    when = {
        "random": lambda steps: random_steps(rng, steps, share),
        "bursts": lambda steps: bursts(rng, steps, 20, share),
        "periodic": lambda steps: periodic(rng, steps, share),
    }[how]
    return one_rank(rng, when, ranks, by_us=80_000.0 if share < 0.2 else SLOW_US)


def pair(rng: Rng, scatter: float, first: int, by_us: float) -> PlantedFleet:
    """Return a fleet of two ranks, one of which is slow from a step on."""
    base = noise(rng, 2, scatter=scatter)
    rank = int(rng.integers(2))
    return PlantedFleet(base, names([rank]), fault=slow(base, {rank: since(first, 1000)}, rng, by_us))


def every_second_step(rng: Rng, *, together: bool) -> PlantedFleet:
    """Return a fleet with four slow GPUs of four hosts, at every second step: the same ones, or each at its own."""
    base = noise(rng, 64)
    culprits = spread(rng, 64, 4)
    odd = rng.permutation([0, 0, 1, 1]) if not together else np.zeros(4, int)
    when = {rank: np.arange(1000) % 2 == first for rank, first in zip(culprits, odd.tolist(), strict=True)}
    return PlantedFleet(base, names(culprits), fault=slow(base, when, rng))


def in_bursts(rng: Rng, ranks: int, count: int, length: int) -> PlantedFleet:
    """Return a fleet with slow ranks of different hosts in bursts of their own, half of the time."""
    base = noise(rng, ranks)
    culprits = spread(rng, ranks, count)
    return PlantedFleet(base, names(culprits), fault=slow(base, {rank: bursts(rng, 1000, length) for rank in culprits}, rng))


def beside_pauses(rng: Rng, by_us: float, *, undecided: bool = False) -> PlantedFleet:
    """Return a fleet with a rank that is slow in 30 % of the steps, beside pauses of random other ranks in half of the steps."""
    base = noise(rng, 64)
    rank = int(rng.integers(64))
    pauses = moving_pauses(rng, base, 0.5, 55_000.0, 65_000.0)
    pauses[rank] = 0
    fault = slow(base, {rank: random_steps(rng, 1000, 0.3)}, rng, by_us)
    return PlantedFleet(base, names([rank], undecided=undecided), fault=fault, pauses=pauses)


def local_steps(rng: Rng, every: int, *, waits_known: bool = True) -> PlantedFleet:
    """Return a fleet whose ranks average their parameters once in several steps; one is 20 ms slower in each step."""
    base = noise(rng, 8)
    rank = int(rng.integers(8))
    fault = slow(base, {rank: always(1000)}, rng, 20_000.0)
    return PlantedFleet(base, names([rank]), fault=fault, meets_every=every, waits_known=waits_known)


# Hosts


def slow_hosts(rng: Rng, ranks: int = 64, count: int = 1, when: Callable[[int], Mask] = always) -> PlantedFleet:
    """Return a fleet with hosts whose ranks are slow, each when ``when`` says."""
    base = noise(rng, ranks)
    hosts = rng.permutation(ranks // RANKS_PER_HOST)[:count].tolist()
    culprits = [rank for host in hosts for rank in members(host)]
    return PlantedFleet(base, names(culprits, hosts), fault=slow(base, {rank: when(1000) for rank in culprits}, rng))


def part_of_a_host(rng: Rng, count: int) -> PlantedFleet:
    """Return a fleet with some slow ranks of one host, which is at fault as a whole if they are most of its ranks."""
    base = noise(rng, 64)
    host = int(rng.integers(8))
    culprits = rng.permutation(members(host))[:count].tolist()
    hosts = [host] if 2 * count > RANKS_PER_HOST else []
    return PlantedFleet(base, names(culprits, hosts), fault=slow(base, {rank: always(1000) for rank in culprits}, rng))


def ranks_in_turn(rng: Rng, length: int) -> PlantedFleet:
    """Return a fleet with a host of which one rank at a time is slow, for some steps, in random order."""
    base = noise(rng, 64)
    host = int(rng.integers(8))
    turns = np.concatenate([rng.permutation(RANKS_PER_HOST) for _ in range(1000 // length // RANKS_PER_HOST + 1)])
    turn = np.repeat(turns, length)[:1000]
    when = {rank: turn == place for place, rank in enumerate(members(host))}
    return PlantedFleet(base, names(members(host), [host]), fault=slow(base, when, rng))


def host_in_bursts(rng: Rng, ranks: int, length: int) -> PlantedFleet:
    """Return a fleet with a host whose GPUs are slow half of the time, each in bursts of its own."""
    return slow_hosts(rng, ranks, when=lambda steps: bursts(rng, steps, length))


def drifting_host(rng: Rng) -> PlantedFleet:
    """Return a fleet with a host that heats up: it gets slower over the run, from nothing to 40 ms."""
    base = noise(rng, 64)
    host = int(rng.integers(8))
    fault = slow(base, {rank: always(1000) for rank in members(host)}, rng, 40_000.0) * np.linspace(0, 1, 1000)
    return PlantedFleet(base, names(members(host), [host]), fault=fault)


def slow_switch(rng: Rng) -> PlantedFleet:
    """Return a fleet with a host whose ranks arrive 25 ms late, all of them at the same time."""
    base = noise(rng, 64)
    host = int(rng.integers(8))
    fault = np.zeros_like(base)
    fault[members(host)] = 25_000.0 * np.exp(rng.normal(0, 0.05, 1000))
    return PlantedFleet(base, names(members(host), [host]), fault=fault)


def hosts_in_turn(rng: Rng) -> PlantedFleet:
    """Return a fleet in which four hosts of eight are slow for 100 steps each, in turn, all their ranks together."""
    base = noise(rng, 64)
    hosts = rng.permutation(8)[:4].tolist()
    when = {rank: np.arange(1000) // 100 % 4 == turn for turn, host in enumerate(hosts) for rank in members(host)}
    return PlantedFleet(base, names(list(when), hosts, or_rotating=True), fault=slow(base, when, rng))


# Records that are missing, and runs that change


def lost_records(rng: Rng, share: float) -> PlantedFleet:
    """Return a fleet of 256 ranks, one of them slow, with some records of any rank missing."""
    fleet = one_rank(rng, always, 256, by_us=0.4 * STEP_US)
    return with_missing(fleet, rng.random(fleet.shape) < share)


def with_missing(fleet: PlantedFleet, missing: Mask) -> PlantedFleet:
    return PlantedFleet(fleet.base, fleet.expected, fault=fleet.fault, missing=missing)


def own_records_lost(rng: Rng) -> PlantedFleet:
    """Return a fleet whose slow rank lacks a fifth of its records."""
    fleet = one_rank(rng, always)
    missing = np.zeros(fleet.shape, bool)
    missing[fleet.expected.ranks[0]] = rng.random(1000) < 0.2
    return with_missing(fleet, missing)


def ranks_lost(rng: Rng, *, folders: bool) -> PlantedFleet:
    """Return a fleet of 64 ranks, one slow, and without any record of 10 others. ``folders``: those have left their identity."""
    fleet = one_rank(rng, always)
    others = [rank for rank in rng.permutation(64).tolist() if rank not in fleet.expected.ranks][:10]
    if not folders:
        return PlantedFleet(fleet.base, fleet.expected, fault=fleet.fault, absent=tuple(others))
    missing = np.zeros(fleet.shape, bool)
    missing[others] = True
    return with_missing(fleet, missing)


def culprit_lost(rng: Rng) -> PlantedFleet:
    """Return a fleet of 4 ranks, one of which makes the others wait for 180 ms and left nothing."""
    base = noise(rng, 4)
    rank = int(rng.integers(4))
    expected = names([rank], undecided=True)
    return PlantedFleet(base, expected, fault=slow(base, {rank: always(1000)}, rng, 180_000.0), absent=(rank,))


def replaced(rng: Rng) -> PlantedFleet:
    """Return a fleet with a rank that was slow until its node was replaced, in the middle of the run."""
    return one_rank(rng, lambda steps: ~since(500, steps))


def restarted(rng: Rng) -> PlantedFleet:
    """Return two attempts with another slow rank each; the last is judged."""
    first, last = one_rank(rng, always), one_rank(rng, always)
    return PlantedFleet(last.base, last.expected, fault=last.fault, earlier=first)


# Rare steps


def rare(steps: int, chosen: Sequence[int]) -> Mask:
    return np.isin(np.arange(steps), chosen)


def stopped_once(rng: Rng) -> PlantedFleet:
    """Return a fleet with one step of 600 that takes 30 s, because a rank was stopped; the others take 85 ms."""
    base = noise(rng, 8, 600)
    rank, step = int(rng.integers(8)), int(rng.integers(100, 550))
    fault = np.zeros_like(base)
    fault[rank, step] = 30e6
    return PlantedFleet(base, ExpectedAnswer("rare", (rank,)), fault=fault, rare=rare(600, [step]))


def checkpoints(rng: Rng) -> PlantedFleet:
    """Return a fleet of which one rank writes a checkpoint of 4 s at every 50th of 200 steps."""
    base = noise(rng, 8, 200)
    rank, steps = int(rng.integers(8)), [49, 99, 149, 199]
    fault = np.zeros_like(base)
    fault[rank, steps] = rng.normal(4e6, 0.1e6, len(steps))
    return PlantedFleet(
        base,
        ExpectedAnswer("rare", (rank,), cause="checkpoint"),
        fault=fault,
        fault_phase="between_steps",
        tags={(rank, step): "checkpoint" for step in steps},
        rare=rare(200, steps),
    )


def evaluations(rng: Rng) -> PlantedFleet:
    """Return a fleet whose ranks all evaluate for 10 s in 4 of 400 steps."""
    base = noise(rng, 8, 400)
    steps = [99, 199, 299, 399]
    fault = np.zeros_like(base)
    fault[:, steps] = rng.normal(10e6, 0.1e6, (8, len(steps)))
    return PlantedFleet(
        base,
        ExpectedAnswer("rare", cause="evaluation"),
        fault=fault,
        fault_phase="between_steps",
        tags={(rank, step): "eval" for rank in range(8) for step in steps},
        rare=rare(400, steps),
    )
