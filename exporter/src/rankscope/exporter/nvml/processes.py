"""Processes on a GPU: for the attribution of GPUs to jobs and, with the collector ``process``, as series."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from ctypes import byref, c_uint, c_ulonglong, create_string_buffer
from pathlib import Path
from struct import Struct
from typing import Any, Final, Literal

import msgspec

from rankscope.exporter.nvml.calls import NvmlCalls, is_all_ones
from rankscope.exporter.nvml.rows import EVERY_PASS_S
from rankscope.exporter.nvml.sample_pass import SamplePass, Topic
from rankscope.exporter.nvml.tables import MAX_BYTES
from rankscope.exporter.source import GpuProcess, MigDevice

_Kind = Literal["compute", "graphics", "mps"]
_KINDS: Final[tuple[tuple[_Kind, str], ...]] = (
    ("compute", "nvmlDeviceGetComputeRunningProcesses"),
    ("mps", "nvmlDeviceGetMPSComputeRunningProcesses"),
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
)
JOBS_INTERVAL_S: Final = 5.0
"""Interval of the jobs collector in seconds: allocations change seldom, and a pass reads /proc for every process on a GPU."""
_PROCESS: Final = Struct("@IQII")
_UTILIZATION: Final = Struct("@IQI12x")
_INITIAL_ROWS: Final = 64
_MAX_ROWS: Final = 1 << 16
_US: Final = 1_000_000
_PROC: Final = Path("/proc")


class ProcessTopic(Topic):
    """Processes that have the GPU open, read from the whole GPU: NVML names the MIG device of each process."""

    def __init__(self, *, series: bool) -> None:
        self._series = series
        self._due_s = float("-inf")
        self._gpu_processes: list[GpuProcess] = []
        self._read_s = 0.0
        self._sampled: dict[int, float] | None = None
        self._mig_devices: list[MigDevice] = []
        self._since_us = 0
        self._processes, self._samples = _RowBuffer(_PROCESS), _RowBuffer(_UTILIZATION)
        self.metrics = ("gpu_process_memory_used_bytes", "gpu_process_sm_utilization_ratio") if series else ()

    def collect(self, sample_pass: SamplePass) -> None:
        """Read the process table. A process in several of NVML's lists is kept once, with the kind of the first."""
        # If the MIG devices changed, the same processes have other uuids.
        if self._due_s <= sample_pass.now_s or sample_pass.mig_devices != self._mig_devices:
            self._gpu_processes, self._read_s, self._mig_devices = (
                self._find(sample_pass),
                sample_pass.now_s,
                sample_pass.mig_devices,
            )
            self._add_utilization(sample_pass)
            self._due_s = sample_pass.now_s + (EVERY_PASS_S if self._series else JOBS_INTERVAL_S)
        sample_pass.processes, sample_pass.processes_s = self._gpu_processes, self._read_s
        if self._series:
            self._emit(sample_pass, sample_pass.processes)

    def _find(self, sample_pass: SamplePass) -> list[GpuProcess]:
        nvml = sample_pass.nvml
        processes: dict[tuple[int, str], GpuProcess] = {}
        for kind, call in _KINDS:
            for pid, used, gpu_instance, compute_instance in self._list(nvml, call):
                uuid = _mig_uuid(sample_pass.mig_devices, gpu_instance, compute_instance)
                if not is_all_ones(pid):
                    processes.setdefault((pid, uuid), GpuProcess(pid, kind, used if used <= MAX_BYTES else None, uuid))
        return list(processes.values())

    def _add_utilization(self, sample_pass: SamplePass) -> None:
        """Add the share of the SMs to the processes; if it cannot be read, the processes themselves are still known."""
        self._sampled = None
        if not self._gpu_processes:
            return
        try:
            self._sampled = self._utilization(sample_pass.nvml)
        except sample_pass.nvml.binding.NVMLError as error:
            if self._series:
                sample_pass.mark_absent("gpu_process_sm_utilization_ratio", sample_pass.nvml.reason(error))
        if self._sampled is not None:
            # A process without a sample had no kernel running.
            ratios = self._sampled
            self._gpu_processes = [
                msgspec.structs.replace(process, sm_ratio=ratios.get(process.pid, 0.0)) if not process.uuid else process
                for process in self._gpu_processes
            ]

    def _list(self, nvml: NvmlCalls, call: str) -> Iterator[tuple[int, ...]]:
        """Return pid, bytes, GPU instance and compute instance of each process of a kind; none if the kind is not supported."""
        missing = nvml.binding.NVML_ERROR_FUNCTION_NOT_FOUND
        code, rows = self._processes.read(nvml, lambda count, rows: nvml.call(f"{call}_v3", nvml.handle, count, rows))
        if code == missing:  # drivers before R510, with the same structure
            code, rows = self._processes.read(nvml, lambda count, rows: nvml.call(f"{call}_v2", nvml.handle, count, rows))
        if code in {nvml.binding.NVML_ERROR_NOT_SUPPORTED, missing}:
            return iter(())
        if code:
            raise nvml.binding.NVMLError(code)
        return rows

    def _emit(self, sample_pass: SamplePass, processes: list[GpuProcess]) -> None:
        names = {process.pid: _name(process.pid) for process in processes}
        for process in processes:
            if process.used_bytes is not None:
                labels = (("pid", str(process.pid)), ("process", names[process.pid]))
                sample_pass.emit("gpu_process_memory_used_bytes", process.used_bytes, labels, process.uuid)
        for pid, ratio in (self._sampled or {}).items():
            if pid in names:
                labels = (("pid", str(pid)), ("process", names[pid]))
                sample_pass.emit("gpu_process_sm_utilization_ratio", ratio, labels)

    def _utilization(self, nvml: NvmlCalls) -> dict[int, float] | None:
        """Return the latest SM utilization of each process with a sample since the last call, by pid; None if unsupported."""
        now_us = time.time_ns() // 1000
        if self._since_us > now_us:  # the wall clock was set back
            self._since_us = now_us - int(JOBS_INTERVAL_S * _US)
        code, rows = self._samples.read(
            nvml,
            lambda count, rows: nvml.call(
                "nvmlDeviceGetProcessUtilization", nvml.handle, rows, count, c_ulonglong(self._since_us)
            ),
        )
        if code == nvml.binding.NVML_ERROR_NOT_FOUND:
            return {}
        if code in {nvml.binding.NVML_ERROR_NOT_SUPPORTED, nvml.binding.NVML_ERROR_FUNCTION_NOT_FOUND}:
            return None
        if code:
            raise nvml.binding.NVMLError(code)
        latest: dict[int, float] = {}
        # Samples of the future are of a clock that was set back since, or no readings.
        for stamp_us, pid, ratio in sorted((stamp_us, pid, sm / 100) for pid, stamp_us, sm in rows if stamp_us <= now_us + _US):
            self._since_us = max(self._since_us, stamp_us)
            if ratio <= 1:
                latest[pid] = ratio
        return latest


class _RowBuffer:
    """Memory for the rows that an NVML function returns, which grows with their number up to ``_MAX_ROWS``."""

    def __init__(self, layout: Struct) -> None:
        self._layout = layout
        self._count = c_uint()
        self._reference = byref(self._count)
        self._buffer = create_string_buffer(_INITIAL_ROWS * layout.size)

    def read(self, nvml: NvmlCalls, call: Callable[[Any, Any], int]) -> tuple[int, Iterator[tuple[int, ...]]]:
        """Return the code and the rows of ``call(count, rows)``; raise ``NVMLError`` if there cannot be as many rows."""
        while True:
            room = self._count.value = len(self._buffer) // self._layout.size
            code = call(self._reference, self._buffer)
            if code != nvml.binding.NVML_ERROR_INSUFFICIENT_SIZE:
                break
            room = nvml.check_count(2 * max(room, self._count.value), _MAX_ROWS)
            self._buffer = create_string_buffer(room * self._layout.size)
        count = 0 if code else nvml.check_count(self._count.value, room)
        return code, self._layout.iter_unpack(memoryview(self._buffer)[: count * self._layout.size])


def _mig_uuid(devices: list[MigDevice], gpu_instance: int, compute_instance: int) -> str:
    for device in devices:
        if (device.gpu_instance, device.compute_instance) == (gpu_instance, compute_instance):
            return device.uuid
    return ""


def _name(pid: int) -> str:
    """Return the short name (``comm``) of a process; empty if it exited or is in another PID namespace."""
    try:
        return (_PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""
