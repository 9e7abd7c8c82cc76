"""How long the fleet waits for what."""

from __future__ import annotations

import msgspec


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long the fleet waits for what, in seconds.

    ``call_s``: one NVML call of a pass. ``open_s``: one call while the driver is started and the GPU opened.

    ``die_s``: the end of a killed process, before it counts as stuck. ``end_s``: the end of a process told to end, before it is
    killed. ``retry_s``: the pauses before the first, second, … new try.

    ``survey_s``: between two looks at the whole node; ``survey_retry_s``: the first, second, … while the driver does not answer.
    ``watch_s``: between two looks at the list of PCI devices. ``stale_driver_s``: how long the driver's library may not match the
    loaded driver before only a restart can help.
    """

    call_s: float = 5.0
    open_s: float = 30.0
    die_s: float = 1.0
    end_s: float = 1.0
    retry_s: tuple[float, ...] = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
    survey_s: float = 60.0
    watch_s: float = 5.0
    survey_retry_s: tuple[float, ...] = (2.0, 5.0, 10.0, 20.0, 40.0, 60.0)
    stale_driver_s: float = 60.0
