"""Xid errors as NVML events, from the moment the GPU's process registers for them."""

from __future__ import annotations

import time
from ctypes import create_string_buffer
from struct import Struct
from typing import Any, Final

from rankscope.exporter.nvml.calls import NvmlCalls, is_all_ones
from rankscope.exporter.nvml.sample_pass import SamplePass, Topic
from rankscope.exporter.source import XidEvent

_NO_WAIT_MS: Final = 0
_EVENT: Final = Struct("@8xQQ8x")
"""The parts of the structure that are read: the event's type and its data."""
_MAX_EVENTS: Final = 256
"""Maximum events read in one pass; the driver queues further ones."""


class XidTopic(Topic):
    """Event set of this GPU, drained in every pass without blocking."""

    def __init__(self) -> None:
        self._events: Any = None
        self._memory = create_string_buffer(_EVENT.size)

    def collect(self, sample_pass: SamplePass) -> None:
        """Add the events since the last pass."""
        nvml = sample_pass.nvml
        kind = nvml.binding.nvmlEventTypeXidCriticalError
        if self._events is None:
            events = nvml("nvmlEventSetCreate")
            try:
                nvml("nvmlDeviceRegisterEvents", nvml.handle, kind, events)
            except nvml.binding.NVMLError as error:
                nvml("nvmlEventSetFree", events)
                # Report it: a failed registration must not look like no errors.
                sample_pass.fault = f"Xid events are not available: {nvml.reason(error)}"
                return
            self._events = events
        self.drain(nvml, sample_pass.xids)

    def drain(self, nvml: NvmlCalls, xids: list[XidEvent]) -> None:
        """Append the queued events to ``xids``; raises as ``collect``."""
        if self._events is None:
            return
        for _ in range(_MAX_EVENTS):
            code = nvml.call("nvmlEventSetWait_v2", self._events, self._memory, _NO_WAIT_MS)
            if code == nvml.binding.NVML_ERROR_TIMEOUT:
                break
            if code:
                raise nvml.binding.NVMLError(code)
            event_kind, xid = _EVENT.unpack_from(self._memory)
            if event_kind == nvml.binding.nvmlEventTypeXidCriticalError and not is_all_ones(xid):
                xids.append(XidEvent(time.time(), xid))

    def close(self, nvml: NvmlCalls) -> None:
        """Free the event set."""
        if self._events is not None:
            nvml("nvmlEventSetFree", self._events)
            self._events = None
