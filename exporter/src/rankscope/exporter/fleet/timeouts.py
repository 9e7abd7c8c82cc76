"""Timeouts and intervals of the fleet."""

from __future__ import annotations

import msgspec


class FleetTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts and intervals of the fleet, in seconds.

    Attributes:
        call_s: timeout of one NVML call while sampling.
        open_s: timeout of one NVML call while the driver is initialized and the GPU opened.
        die_s: time a killed process has to exit before it counts as stuck.
        end_s: time a process has to exit by itself before it is killed.
        retry_s: delays before the first, second, … retry of a GPU that failed.
        survey_s: interval of the node survey.
        watch_s: interval of the check of the PCI device list.
        survey_retry_s: delays before the first, second, … retry of the survey while the driver does not answer.
        stale_driver_s: time the driver's library may differ from the loaded driver before the exporter exits for a restart.
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
