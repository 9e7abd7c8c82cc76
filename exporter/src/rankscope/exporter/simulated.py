"""Invented GPUs, for trying things on machines that have none. Everything they publish is labelled as simulated."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rankscope.exporter.source import GpuIdentity, GpuSample, NodeSample, Reading

_MEMORY_BYTES: Final = 80 * 2**30
_RESERVED_BYTES: Final = 600 * 2**20
_POWER_LIMIT_WATTS: Final = 700.0
_CLOCK_MAX_HERTZ: Final = {"graphics": 1.98e9, "memory": 2.619e9, "sm": 1.98e9}


@dataclass(frozen=True, slots=True)
class _Character:
    """What makes one invented GPU differ from the next: its load and how that swings."""

    identity: GpuIdentity
    load: float
    swing: float
    period_s: float
    phase: float
    memory_share: float
    coolness: float


class SimulatedSource:
    """A ``GpuSource`` of ``gpus`` plausible, slowly varying GPUs; the same ``seed`` and ``clock`` give the same values.

    ``clock`` returns seconds; only differences from its value at construction matter.
    """

    simulated = True
    doing = "waiting"

    def __init__(self, gpus: int, *, seed: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        dice = random.Random(seed)  # noqa: S311  not for secrets
        self._characters = [
            _Character(
                identity=GpuIdentity(
                    uuid=f"GPU-51312a7e-d000-4000-8000-{index:012x}",
                    index=index,
                    model="simulated GPU 80GB",
                    pci_bus_id=f"00000000:{0x10 + index:02x}:00.0",
                    serial=None,
                ),
                load=dice.uniform(0.7, 0.85),
                swing=dice.uniform(0.05, 0.12),
                period_s=dice.uniform(40, 120),
                phase=dice.uniform(0, math.tau),
                memory_share=dice.uniform(0.6, 0.8),
                coolness=dice.uniform(-3, 3),
            )
            for index in range(gpus)
        ]

    def sample(self) -> NodeSample:
        """All GPUs as they are at this moment of the clock."""
        at_s = self._clock() - self._started
        return NodeSample("simulated", tuple(_sample(character, at_s) for character in self._characters))

    def close(self) -> None:
        """Nothing is held."""


def _sample(gpu: _Character, at_s: float) -> GpuSample:
    omega = math.tau / gpu.period_s
    load = gpu.load + gpu.swing * math.sin(omega * at_s + gpu.phase)
    # The exact integral of the power below, so that the counter and the gauge tell the same story.
    load_seconds = gpu.load * at_s + gpu.swing / omega * (math.cos(gpu.phase) - math.cos(omega * at_s + gpu.phase))
    used = gpu.memory_share * (_MEMORY_BYTES - _RESERVED_BYTES)
    celsius = 32 + 38 * load + gpu.coolness
    values = {
        "gpu_temperature_celsius": round(celsius),
        "gpu_memory_temperature_celsius": round(celsius + 9),
        "gpu_memory_total_bytes": _MEMORY_BYTES,
        "gpu_memory_used_bytes": round(used),
        "gpu_memory_free_bytes": _MEMORY_BYTES - _RESERVED_BYTES - round(used),
        "gpu_memory_reserved_bytes": _RESERVED_BYTES,
        "gpu_utilization_ratio": round(load, 2),
        "gpu_memory_utilization_ratio": round(0.55 * load, 2),
        "gpu_power_watts": round(90 + 560 * load, 3),
        "gpu_power_limit_watts": _POWER_LIMIT_WATTS,
        "gpu_energy_joules_total": round(90 * at_s + 560 * load_seconds, 3),
    }
    # Under load a GPU gives up a little of its clock; memory runs at one speed.
    shares = {"graphics": 1 - 0.08 * load, "memory": 1.0, "sm": 1 - 0.08 * load}
    readings = [Reading(metric, value) for metric, value in values.items()]
    for clock, highest in _CLOCK_MAX_HERTZ.items():
        label = (("clock", clock),)
        readings.append(Reading("gpu_clock_hertz", round(shares[clock] * highest, -6), label))
        readings.append(Reading("gpu_clock_max_hertz", highest, label))
    return GpuSample(gpu.identity, up=True, readings=tuple(readings))
