"""Processes on a GPU: for the attribution of GPUs to jobs and, with the collector ``process``, as series."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import byref, c_uint, create_string_buffer
from pathlib import Path
from struct import Struct
from typing import Final, Literal

from rankscope.exporter.nvml.calls import NvmlCalls
from rankscope.exporter.nvml.one_pass import Pass, Topic
from rankscope.exporter.nvml.rows import NOW
from rankscope.exporter.source import GpuProcess, MigDevice

_Kind = Literal["compute", "graphics", "mps"]
_KINDS: Final[tuple[tuple[_Kind, str], ...]] = (
    ("compute", "nvmlDeviceGetComputeRunningProcesses"),
    ("mps", "nvmlDeviceGetMPSComputeRunningProcesses"),
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
)
JOBS_LOOK_S: Final = 5.0
"""Interval of the jobs collector in seconds; it needs the process table no more often."""
_NOT_AVAILABLE: Final = 2**64 - 1
_PROCESS: Final = Struct("@IQII")
_USUALLY: Final = 64
_PROC: Final = Path("/proc")


class Processes(Topic):
    """Processes that have the GPU open, read from the whole GPU: NVML names the MIG device of each process."""

    def __init__(self, *, series: bool) -> None:
        self._series = series
        self._due_s = float("-inf")
        self._found: list[GpuProcess] = []
        self._found_s = 0.0
        self._mig_devices: list[MigDevice] = []
        self._since_us = 0
        self._count = c_uint()
        self._reference = byref(self._count)
        self._buffer = create_string_buffer(_USUALLY * _PROCESS.size)
        self.metrics = ("gpu_process_memory_used_bytes", "gpu_process_sm_utilization_ratio") if series else ()

    def collect(self, sample_pass: Pass) -> None:
        """Read the process table. A process in several of NVML's lists is kept once, with the kind of the first."""
        # If the MIG devices changed, the same processes have other uuids.
        if self._due_s <= sample_pass.now_s or sample_pass.mig_devices != self._mig_devices:
            self._found, self._found_s, self._mig_devices = self._find(sample_pass), sample_pass.now_s, sample_pass.mig_devices
            self._due_s = sample_pass.now_s + (NOW if self._series else JOBS_LOOK_S)
        sample_pass.processes, sample_pass.processes_s = self._found, self._found_s
        if self._series:
            self._emit(sample_pass, sample_pass.processes)

    def _find(self, sample_pass: Pass) -> list[GpuProcess]:
        nvml = sample_pass.nvml
        found: dict[tuple[int, str], GpuProcess] = {}
        for kind, call in _KINDS:
            for pid, used, gpu_instance, compute_instance in self._list(nvml, call):
                uuid = _mig_uuid(sample_pass.mig_devices, gpu_instance, compute_instance)
                found.setdefault((pid, uuid), GpuProcess(pid, kind, None if used == _NOT_AVAILABLE else used, uuid))
        return list(found.values())

    def _list(self, nvml: NvmlCalls, call: str) -> Iterator[tuple[int, int, int, int]]:
        """Return pid, bytes, GPU instance and compute instance of each process of a kind; none if the kind is not supported."""
        while True:
            self._count.value = len(self._buffer) // _PROCESS.size
            code = nvml.call(f"{call}_v3", nvml.handle, self._reference, self._buffer)
            if code == nvml.binding.NVML_ERROR_FUNCTION_NOT_FOUND:
                # Drivers before R510, with the same structure.
                code = nvml.call(f"{call}_v2", nvml.handle, self._reference, self._buffer)
            if code != nvml.binding.NVML_ERROR_INSUFFICIENT_SIZE:
                break
            self._buffer = create_string_buffer(2 * max(len(self._buffer), self._count.value * _PROCESS.size))
        if code in {nvml.binding.NVML_ERROR_NOT_SUPPORTED, nvml.binding.NVML_ERROR_FUNCTION_NOT_FOUND}:
            return iter(())
        if code:
            raise nvml.binding.NVMLError(code)
        return _PROCESS.iter_unpack(memoryview(self._buffer)[: self._count.value * _PROCESS.size])

    def _emit(self, sample_pass: Pass, processes: list[GpuProcess]) -> None:
        names = {process.pid: _name(process.pid) for process in processes}
        for process in processes:
            if process.used_bytes is not None:
                labels = (("pid", str(process.pid)), ("process", names[process.pid]))
                sample_pass.emit("gpu_process_memory_used_bytes", process.used_bytes, labels, process.uuid)
        for pid, percent in self._utilization(sample_pass.nvml).items():
            if pid in names and percent <= 100:
                labels = (("pid", str(pid)), ("process", names[pid]))
                sample_pass.emit("gpu_process_sm_utilization_ratio", percent / 100, labels)

    def _utilization(self, nvml: NvmlCalls) -> dict[int, int]:
        """Return the latest SM utilization in percent of each process since the last pass, by pid."""
        try:
            samples = nvml("nvmlDeviceGetProcessUtilization", nvml.handle, self._since_us)
        except nvml.binding.NVMLError as error:
            # An empty list is raised as the error "SUCCESS".
            if error.value == nvml.binding.NVML_SUCCESS or nvml.reason(error) in {
                "not_found",
                "not_supported",
                "function_not_found",
            }:
                return {}
            raise
        latest: dict[int, int] = {}
        for sample in sorted(samples, key=lambda sample: sample.timeStamp):
            latest[sample.pid] = sample.smUtil
            self._since_us = max(self._since_us, sample.timeStamp)
        return latest


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
