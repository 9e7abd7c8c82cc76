"""Simulated step tables held in memory, with autocorrelated noise and known ground truth."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.compare.compare_result import Comparison, Quantity
from rankscope.analysis.compare.recording import Recording
from rankscope.analysis.evidence.step_table.steps import METRICS, Matrices, StepTable
from rankscope.runs.records import AttemptInfo, RankInfo, RunInfo

Steps = NDArray[np.float64]


def lasting_noise(rng: np.random.Generator, shape: tuple[int, ...], phi: float) -> Steps:
    """Return first-order autoregressive noise along the last axis, of variance 1."""
    fresh = rng.standard_normal((*shape[:-1], shape[-1] + 100))
    noise = np.empty_like(fresh)
    noise[..., 0] = fresh[..., 0]
    for step in range(1, fresh.shape[-1]):
        noise[..., step] = phi * noise[..., step - 1] + np.sqrt(1 - phi**2) * fresh[..., step]
    return noise[..., 100:]


@dataclass
class MadeUp:
    """Run whose ranks wait for the slowest rank in backward."""

    name: str = "made-up"
    ranks: int = 4
    steps: int = 120
    seed: int = 0
    phi: float = 0.5
    noise: float = 0.03
    common: float = 0.01
    """Noise shared by all ranks, as a fraction of the step."""
    samples: float = 8
    tokens: float = np.nan
    transfer_us: float = 4_000
    phases: dict[str, float] = field(
        default_factory=lambda: {
            "data": 5_000,
            "forward": 30_000,
            "backward": 50_000,
            "optimizer": 10_000,
            "between_steps": 5_000,
        }
    )
    late: dict[int, tuple[str, float]] = field(default_factory=dict)
    """Rank to (phase, extra time in that phase in microseconds)."""
    hosts: dict[int, str] = field(default_factory=dict)
    coordinates: dict[int, dict[str, int]] = field(default_factory=dict)
    price: float | None = None

    def recording(self) -> Recording:
        rng = np.random.default_rng(self.seed)
        shape = (self.ranks, self.steps)
        values = {name: np.full(shape, np.nan) for name in METRICS}
        shared = 1 + self.common * lasting_noise(rng, (self.steps,), self.phi)
        for phase, us in self.phases.items():
            own = us * shared * np.exp(self.noise * lasting_noise(rng, shape, self.phi))
            for rank, (where, extra) in self.late.items():
                own[rank] += extra if where == phase else 0.0
            values[f"own_{phase}_us"], values[f"{phase}_us"] = own, own.copy()
        own = np.sum([values[f"own_{phase}_us"] for phase in self.phases], axis=0)
        wall = own.max(axis=0) + self.transfer_us
        values |= {"own_us": own, "blocked_us": wall - own, "wall_us": np.broadcast_to(wall, shape).copy()}
        values["backward_us"] += wall - own
        values |= {"samples": np.full(shape, self.samples), "tokens": np.full(shape, self.tokens), "gc_us": np.zeros(shape)}
        table = StepTable(
            attempt=0,
            ranks=np.arange(self.ranks),
            steps=np.arange(self.steps),
            values=Matrices(values, np.arange(self.ranks), np.arange(self.steps)),
            start_unix_ns=10**18 + np.cumsum(values["wall_us"] * 1000, axis=1).astype(np.int64),
            profiled=np.zeros(shape, dtype=bool),
            tags={},
        )
        infos = {
            rank: RankInfo(
                rank=rank,
                world_size=self.ranks,
                host=self.hosts.get(rank, f"n{rank // 2}"),
                pid=1,
                device_kind="cuda",
                coordinates=self.coordinates.get(rank, {}),
                start_unix_ns=10**18,
                end_reason="exit",
            )
            for rank in range(self.ranks)
        }
        return Recording(
            path=self.name,
            info=RunInfo(run_id=self.name, name=self.name, start_unix_ns=10**18, price_per_gpu_hour=self.price),
            attempt=0,
            about=AttemptInfo(attempt=0, start_unix_ns=10**18, world_size=self.ranks),
            infos=infos,
            world_size=self.ranks,
            table=table,
            windows={rank: [] for rank in range(self.ranks)},
            warnings=[],
        )


def quantity(comparison: Comparison, name: str) -> Quantity:
    """Return a quantity of a comparison."""
    return next(item for item in comparison.quantities if item.name == name)
