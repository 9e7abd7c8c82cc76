"""Delta encoding of readings between a GPU's process and the daemon: all in the first message, then only the changed ones."""

from __future__ import annotations

import msgspec

from rankscope.exporter.fleet.wire import Sampled
from rankscope.exporter.source import GpuSample, Reading


class DeltaEncoder:
    """Encoder on the sending side."""

    def __init__(self) -> None:
        self._sent: tuple[Reading, ...] | None = None

    def encode(self, sample: GpuSample, took_s: float) -> Sampled:
        """Return the message to send for this sample. The first one carries all readings, even if there are none."""
        before, readings = self._sent, sample.readings
        self._sent = readings
        if before is None or len(before) != len(readings):
            return Sampled(sample, took_s)
        places = [place for place, reading in enumerate(readings) if reading is not before[place] and reading != before[place]]
        return Sampled(msgspec.structs.replace(sample, readings=tuple(readings[place] for place in places)), took_s, places)


def apply_delta(before: tuple[Reading, ...], changed: tuple[Reading, ...], places: list[int] | None) -> tuple[Reading, ...]:
    """Decode on the receiving side: return all readings. Unchanged readings are the same objects as in ``before``."""
    if places is None:
        return changed
    readings = list(before)
    for place, reading in zip(places, changed, strict=True):
        readings[place] = reading
    return tuple(readings)
