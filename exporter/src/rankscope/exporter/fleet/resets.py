"""Whether a GPU was initialised anew while no process read it, and when: what errors before that were about is repaired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from rankscope.exporter.fleet.inventory import EnergyMeter
from rankscope.exporter.source import DownReason, Reading

_CERTAIN: Final = frozenset({"released", "lost", "moved", "energy"})
_UNCERTAIN: Final = frozenset({"missing", "not_in_driver", "no_driver", "library_mismatch", "exchanged"})
"""Signs that an energy counter which went on disproves: a driver may fail to list a GPU, or to answer, for a while."""

_ENERGY: Final = "gpu_energy_joules_total"
_POWER: Final = "gpu_power_watts"
_MAX_WATTS: Final = 5000.0
"""No GPU draws more: a counter above this many joules for each second without a reading cannot have begun again meanwhile."""

_WAIT_S: Final = 60.0
"""Time for which a counter that was read before is awaited, where only it can disprove a reset."""

Sign = DownReason | Literal["moved", "energy", "exchanged"]


class Resets:
    """Signs that one GPU is initialised anew, collected until a process reads it again. Times are monotonic.

    A reset is dated by energy and power of the first sample after it, but not before the last sign of it: a job that uses the
    GPU at once may cause an error before the exporter has opened it.
    """

    def __init__(self) -> None:
        self._signs: set[str] = set()
        self._energy: tuple[float, float] | None = None
        self._last_sign_s = float("-inf")

    def remember(self, meter: EnergyMeter) -> None:
        """Start with the energy counter that an earlier exporter read."""
        self._energy = meter.energy_j, meter.monotonic_s

    def replaced(self) -> None:
        """Forget the energy counter: another GPU is in this place."""
        self._energy = None

    def add(self, sign: Sign, now: float) -> None:
        """Note that the GPU is down for a reason, was moved, or that its driver was exchanged; other reasons are no signs."""
        if sign in _CERTAIN or sign in _UNCERTAIN:
            self._signs.add(sign)
            self._last_sign_s = max(self._last_sign_s, now)

    def cancel(self, sign: Sign) -> None:
        """Forget a sign that did not come about."""
        self._signs.discard(sign)

    def compare(self, before: Sequence[Reading], before_s: float, first: Sequence[Reading], now: float) -> None:
        """Compare the first readings of a process with the last ones before it. An energy counter that is smaller began again."""
        if joules := energy_of(before):
            self._energy = joules, before_s
        joules = energy_of(first)
        if not joules or self._energy is None:
            return
        (last_joules, last_s), self._energy = self._energy, None
        if joules < last_joules:
            self.add("energy", last_s)
        elif last_joules > _MAX_WATTS * (now - last_s):
            self._signs -= _UNCERTAIN

    def take(self, readings: Sequence[Reading], opened_s: float, now: float) -> float | None:
        """Return when the GPU was reset, as of a first sample, and start anew; None if it was not, or that is not known yet."""
        joules, watts = energy_of(readings), _first(readings, _POWER)
        awaits_energy = self._energy is not None and not joules and now - opened_s < _WAIT_S
        if not self._signs or (awaits_energy and self._signs <= _UNCERTAIN):
            return None
        since_s = self._last_sign_s
        self._signs, self._last_sign_s = set(), float("-inf")
        return max(since_s, min(opened_s, now - joules / watts)) if joules and watts else opened_s


def energy_of(readings: Sequence[Reading]) -> float:
    """Return the energy that the driver has counted since it initialised the GPU; 0 if unknown."""
    return _first(readings, _ENERGY)


def _first(readings: Sequence[Reading], metric: str) -> float:
    return next((reading.value for reading in readings if reading.metric == metric), 0.0)
