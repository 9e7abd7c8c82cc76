"""Simulated GPUs, for trials on machines without a GPU. All their metrics are labelled as simulated."""

from __future__ import annotations

import math
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from rankscope.exporter.catalogue import BY_NAME, COLLECTORS, DEFAULT_COLLECTORS
from rankscope.exporter.simulated_gpu import BOARDS, GpuModel, SimulatedGpu
from rankscope.exporter.source import CollectorRun, Driver, FleetState, GpuSample, GpuState

MAX_GPUS: Final = 64

_SPEC: Final = re.compile(r"(\d{1,3})(?:x(\w+))?")
_NO_BOARD_IN_PARTICULAR: Final = replace(BOARDS["H100"], model="simulated GPU 80GB")


def parse_simulation(text: str) -> tuple[int, GpuModel]:
    """Parse ``4`` or ``8xH100`` to number and board; raises ``ValueError`` with the valid values."""
    match = _SPEC.fullmatch(text.strip())
    if match is None or not 1 <= int(match[1]) <= MAX_GPUS:
        raise ValueError(f"{text!r} is neither a number from 1 to {MAX_GPUS} nor, like 8xH100, one with a model")
    if match[2] is None:
        return int(match[1]), _NO_BOARD_IN_PARTICULAR
    board = BOARDS.get(match[2].upper())
    if board is None:
        raise ValueError(f"{match[2]!r} cannot be simulated: known are {', '.join(BOARDS)}")
    return int(match[1]), board


class SimulatedFleet:
    """``Fleet`` of plausible, slowly varying GPUs; the same ``clock`` gives the same values.

    Args:
        spec: number and model, ``4`` or ``8xH100``.
        collectors: names of the collectors whose metrics are simulated.
        interval_s: seconds after which values change.
        clock: returns seconds; only differences from the value at construction matter.
        now: returns the unix time at construction.

    Raises:
        ValueError: ``spec`` is invalid.
    """

    simulated = True

    def __init__(
        self,
        spec: str,
        *,
        collectors: frozenset[str] = DEFAULT_COLLECTORS,
        interval_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        count, board = parse_simulation(spec)
        dice = random.Random(0)  # noqa: S311  not for secrets
        self._gpus = [SimulatedGpu.rolled(board, index, dice) for index in range(count)]
        self._collectors = collectors
        self._interval_s = interval_s
        self._clock = clock
        self._started = clock()
        self._started_unix_s = now()
        self._lock = threading.Lock()
        self._released: dict[str, tuple[float, float]] = {}
        self._sampled: tuple[int, tuple[GpuSample, ...]] = (-1, ())

    def state(self) -> FleetState:
        """Return all GPUs as of the last full interval of the clock."""
        at_s = self._clock() - self._started
        passes = math.floor(at_s / self._interval_s)
        with self._lock:
            over = [uuid for uuid, (_, until) in self._released.items() if until <= at_s]
            for uuid in over:
                del self._released[uuid]
            if passes != self._sampled[0]:
                self._sampled = passes, tuple(self._sample(gpu, passes * self._interval_s) for gpu in self._gpus)
            samples, released = self._sampled[1], dict(self._released)
        age_s = at_s - passes * self._interval_s
        gpus = tuple(self._gpu_state(sample, age_s, released.get(sample.identity.uuid)) for sample in samples)
        counts = dict.fromkeys(("driver", "pci", "remembered"), len(gpus))
        return FleetState(gpus, Driver("simulated", "", ""), counts, 0, 0, 0, None)

    def release(self, gpu: str, *, ttl_s: float) -> None:
        """Show a GPU as released for ``ttl_s`` seconds; raises ``KeyError`` if there is no such GPU."""
        at_s = self._clock() - self._started
        with self._lock:
            self._released |= dict.fromkeys(self._uuids(gpu), (at_s, at_s + ttl_s))

    def resume(self, gpu: str) -> None:
        """End a release early; raises ``KeyError`` if there is no such GPU."""
        with self._lock:
            for uuid in self._uuids(gpu):
                self._released.pop(uuid, None)

    def start(self) -> None:
        """Do nothing; a simulation needs no thread."""

    def stop(self) -> None:
        """Do nothing; a simulation holds no resources."""

    def _uuids(self, gpu: str) -> list[str]:
        identities = [candidate.identity for candidate in self._gpus]
        matching_uuids = [
            candidate.uuid
            for candidate in identities
            if gpu in ("all", candidate.uuid, candidate.pci_bus_id, str(candidate.index))
        ]
        if not matching_uuids:
            raise KeyError(gpu)
        return matching_uuids

    def _sample(self, gpu: SimulatedGpu, at_s: float) -> GpuSample:
        return GpuSample(
            identity=gpu.identity,
            unix_s=self._started_unix_s + at_s,
            monotonic_s=self._started + at_s,
            readings=tuple(item for item in gpu.readings(at_s) if BY_NAME[item.metric].collector in self._collectors),
            absent=tuple(item for item in gpu.absent() if BY_NAME[item.metric].collector in self._collectors),
            runs=tuple(CollectorRun(name, 0.0, None) for name in sorted(self._collectors) if COLLECTORS[name].reads_gpu),
        )

    def _gpu_state(self, sample: GpuSample, age_s: float, released: tuple[float, float] | None) -> GpuState:
        if released is None:
            return GpuState(sample.identity, up=True, sample=sample, age_s=age_s)
        since_unix_s = self._started_unix_s + released[0]
        return GpuState(sample.identity, up=False, reason="released", detail="released on request", since_unix_s=since_unix_s)
