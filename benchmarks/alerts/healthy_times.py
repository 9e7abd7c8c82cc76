"""Own times of healthy ranks of a job of 64 ranks, with the noise of machines. Measures nothing by itself; see watching.py.

Noise is that of ``fleets/accusations.py``, and some of machines: lasting noise, long pauses, noise that the ranks of a host
share, and neighbours that slow a rank for up to 20 s. Every rank has a small lasting bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RANKS = 64
RANKS_PER_HOST = 8
STEP_US = 1e6
BIAS = 0.01

Own = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class HealthyNoise:
    """Noise of the own times of healthy ranks."""

    scatter: float
    lasts: float = 1
    """Steps for which noise lasts, as in ``fleets/accusations.py``."""
    shared: bool = False
    """True if the ranks of a host have half of the noise in common."""
    pauses: float = 0.0
    """Share of the steps with a pause of a rank, of 0.5 to 1.5 steps."""
    heavy: float = 0.0
    """Share of the steps of a rank with a pause with a Pareto distribution (index 1.5), of at most 20 steps."""
    neighbours: float = 0.0
    """Share of the time in which a neighbour slows some rank, all ranks of a host if ``shared``, by 10 to 60 %."""
    longest: int = 20
    """Longest time for which a neighbour slows a rank, in steps; the shortest is 5."""


NOISES = {
    "independent, 3 %": HealthyNoise(0.03),
    "independent, 20 %": HealthyNoise(0.2),
    "lasts 20 steps, 5 %": HealthyNoise(0.05, 20),
    "lasts 20 steps, 20 %": HealthyNoise(0.2, 20),
    "lasts 100 steps, 10 %": HealthyNoise(0.1, 100),
    "shared by a host, lasts 20 steps, 10 %": HealthyNoise(0.1, 20, shared=True),
    "pauses in one step of ten": HealthyNoise(0.03, 6, pauses=0.1),
    "pauses, heavy-tailed": HealthyNoise(0.03, 6, heavy=0.002),
    "neighbours of a rank, up to 20 s": HealthyNoise(0.05, 6, neighbours=0.2),
}

DISTURBED = HealthyNoise(0.05, 6, neighbours=0.2, longest=60, shared=True)
"""Neighbours of all ranks of a host, for up to a minute: the ranks *are* slow, though not lastingly. Outside the guarantee."""


MORE = {"neighbours of a rank, up to 20 s": 8}
"""Factor of jobs for kinds of noise that name ranks often: their upper limit needs more job-days."""


def own_times(rng: np.random.Generator, steps: int, noise: HealthyNoise, ranks: int = RANKS) -> Own:
    """Return the own times of healthy ranks, [ranks, steps]."""
    own = _lasting(rng, ranks, steps, noise.lasts)
    hosts = -(-ranks // RANKS_PER_HOST)
    host_of = np.arange(ranks) // RANKS_PER_HOST
    if noise.shared:
        own = np.sqrt(np.float32(0.5)) * (own + _lasting(rng, hosts, steps, noise.lasts)[host_of])
    own *= noise.scatter
    np.exp(own, out=own)
    own *= (STEP_US * (1 + rng.normal(0, BIAS, (ranks, 1)))).astype(np.float32)
    if noise.pauses:
        at = np.flatnonzero(rng.random(steps) < noise.pauses)
        own[rng.integers(0, ranks, len(at)), at] += (STEP_US * rng.uniform(0.5, 1.5, len(at))).astype(np.float32)
    if noise.heavy:
        count = rng.poisson(noise.heavy * own.size)
        row, at = rng.integers(0, ranks, count), rng.integers(0, steps, count)
        own[row, at] += (0.3 * STEP_US * np.minimum(rng.pareto(1.5, count) + 1, 60)).astype(np.float32)
    if noise.neighbours:
        for _ in range(rng.poisson(noise.neighbours * steps / (noise.longest + 5) * 2)):
            first, lasts, rank = rng.integers(-noise.longest, steps), rng.integers(5, noise.longest + 1), rng.integers(ranks)
            slowed = host_of == host_of[rank] if noise.shared else np.arange(ranks) == rank
            own[slowed, max(0, first) : max(0, first + lasts)] *= np.float32(1 + rng.uniform(0.1, 0.6))
    return own


def _lasting(rng: np.random.Generator, ranks: int, steps: int, lasts: float) -> Own:
    """Return normal noise that lasts for some steps, as a stationary autoregressive process, [ranks, steps]."""
    drawn = rng.standard_normal((steps, ranks), dtype=np.float32)
    keep = np.float32((lasts - 1) / (lasts + 1))
    if keep:
        drawn[1:] *= np.sqrt(1 - keep**2)
        for step in range(1, steps):
            drawn[step] += keep * drawn[step - 1]
    return np.ascontiguousarray(drawn.T)
