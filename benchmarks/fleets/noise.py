"""Healthy fleets: noise, heavy tails and pauses. Measures nothing by itself; see fleet_truth.py."""

from __future__ import annotations

from typing import Final

import numpy as np
from benchmarks.common.make_run import RANKS_PER_HOST
from benchmarks.fleets.fleet import STEP_US, ExpectedAnswer, Floats, Mask, PlantedFleet

Rng = np.random.Generator

SCATTER: Final = 0.03
"""Usual noise of a step's own time, as a share of it."""
BIAS: Final = 0.005
"""Lasting difference between healthy ranks."""


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


def random_steps(rng: Rng, steps: int, share: float) -> Mask:
    return rng.permutation(steps) < round(share * steps)


def no_fault(steps: int = 1000) -> ExpectedAnswer:
    """Return the answer that no rank is at fault. A short run may be too short even for that."""
    return ExpectedAnswer("none", undecided=steps < 200)


def healthy(
    rng: Rng, ranks: int, steps: int = 1000, *, scatter: float = SCATTER, lasts: float = 1, of_hosts: bool = False
) -> PlantedFleet:
    return PlantedFleet(noise(rng, ranks, steps, scatter=scatter, lasts=lasts, of_hosts=of_hosts), no_fault(steps))


def heavy_tails(rng: Rng, ranks: int, steps: int = 1000) -> PlantedFleet:
    """Return a fleet in which 3 % of the records have a pause, of two steps on average."""
    base = noise(rng, ranks, steps)
    pauses = (rng.random(base.shape) < 0.03) * rng.exponential(2 * STEP_US, base.shape)
    return PlantedFleet(base, no_fault(steps), pauses=pauses)


def pauses_of_any(
    rng: Rng, ranks: int, share: float, *, steps: int = 1000, shortest_us: float = 50_000.0, longest_us: float = 150_000.0
) -> PlantedFleet:
    """Return a fleet in which some rank, any, pauses in a share of the steps."""
    base = noise(rng, ranks, steps)
    return PlantedFleet(base, no_fault(steps), pauses=moving_pauses(rng, base, share, shortest_us, longest_us))


def moving_pauses(rng: Rng, base: Floats, share: float, shortest_us: float, longest_us: float) -> Floats:
    pauses = np.zeros_like(base)
    steps = np.flatnonzero(random_steps(rng, base.shape[1], share))
    pauses[rng.integers(0, len(base), len(steps)), steps] = rng.uniform(shortest_us, longest_us, len(steps))
    return pauses


def collections(rng: Rng, ranks: int) -> PlantedFleet:
    """Return a fleet whose ranks collect garbage at every eighth step each, at other steps than their peers."""
    base = noise(rng, ranks, 400)
    first = rng.permutation(8)[:ranks, None]
    pauses = ((np.arange(400) + first) % 8 == 0) * rng.uniform(300_000, 500_000, base.shape)
    return PlantedFleet(base, ExpectedAnswer("rotating", cause="gc"), pauses=pauses, of_collections=True)
