"""MIG devices: identity, memory, and activity of their GPU instances."""

from __future__ import annotations

from collections import Counter
from ctypes import create_string_buffer
from math import nan
from struct import Struct
from typing import Any, Final

from rankscope.exporter.nvml.calls import NvmlCalls
from rankscope.exporter.nvml.gpm import GpmChain, GpmMetric, take_samples, why_unsupported
from rankscope.exporter.nvml.rows import EVERY_10_S, EVERY_60_S, EVERY_PASS_S
from rankscope.exporter.nvml.sample_pass import SamplePass, Topic
from rankscope.exporter.nvml.tables import MAX_BYTES, MEMORY_V2, MEMORY_V2_LAYOUT
from rankscope.exporter.source import MigDevice

_ACTIVITIES: Final = (
    GpmMetric(1, "gpu_mig_graphics_active"),
    GpmMetric(2, "gpu_mig_sm_active", integral=True),
    GpmMetric(5, "gpu_mig_tensor_active"),
    GpmMetric(10, "gpu_mig_dram_active"),
)
_ACTIVITY_METRICS: Final = tuple(metric for activity in _ACTIVITIES for metric in activity.metrics)
_WHOLE_GPU_ONLY: Final = "gpu_utilization_ratio"
_MAX_DEVICES: Final = 64
_MEMORY: Final = ("total", "reserved", "free", "used")
_MEMORY_LAYOUT: Final = Struct(f"@{MEMORY_V2_LAYOUT}")


class MigTopic(Topic):
    """MIG devices of the GPU, listed in every pass because they can be created and destroyed at any time."""

    metrics = ("gpu_mig_enabled", "gpu_mig_instances")

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], MigDevice] = {}
        self._chains: dict[int, GpmChain] = {}
        self._memory = create_string_buffer(_MEMORY_LAYOUT.size)
        self._max_devices = 0
        self._enabled = 0
        self._enabled_due_s = float("-inf")
        self._utilised = True
        self._no_gpm: str | None = None
        self._gpm_due_s = float("-inf")

    def collect(self, sample_pass: SamplePass) -> None:
        """Emit all readings of all devices. Without MIG, only the mode is read, every 10 s."""
        nvml = sample_pass.nvml
        utilised = not any(absent.metric == _WHOLE_GPU_ONLY for absent in sample_pass.absent)
        # A GPU loses its own utilisation when MIG is enabled: read the mode again when that changes.
        if self._enabled_due_s <= sample_pass.now_s or utilised != self._utilised:
            self._enabled = nvml("nvmlDeviceGetMigMode", nvml.handle)[0]
            self._utilised = utilised
            self._enabled_due_s = sample_pass.now_s + (EVERY_PASS_S if self._enabled else EVERY_10_S)
        sample_pass.mig_enabled = bool(self._enabled)
        sample_pass.emit("gpu_mig_enabled", self._enabled)
        devices = self._devices(nvml) if self._enabled else []
        sample_pass.emit("gpu_mig_instances", len(devices))
        for handle, device in devices:
            sample_pass.mig_devices.append(device)
            self._emit(sample_pass, handle, device)
        if devices or self._chains:
            self._emit_activity(sample_pass, [device for _, device in devices])

    def close(self, nvml: NvmlCalls) -> None:
        """Free the samples."""
        for chain in self._chains.values():
            chain.close(nvml)
        self._chains.clear()

    def _devices(self, nvml: NvmlCalls) -> list[tuple[Any, MigDevice]]:
        self._max_devices = self._max_devices or nvml.check_count(
            nvml("nvmlDeviceGetMaxMigDeviceCount", nvml.handle), _MAX_DEVICES
        )
        devices, by_key = [], {}
        for index in range(self._max_devices):
            try:
                handle = nvml("nvmlDeviceGetMigDeviceHandleByIndex", nvml.handle, index)
                # The key includes the name: a new device of another size may get the uuid of a destroyed one.
                key = nvml("nvmlDeviceGetUUID", handle), nvml("nvmlDeviceGetName", handle)
                by_key[key] = self._by_key.get(key) or _identify(nvml, handle, *key)
                devices.append((handle, by_key[key]))
            except (nvml.binding.NVMLError_NotFound, nvml.binding.NVMLError_InvalidArgument):
                continue  # no device at this index
        self._by_key = by_key
        return devices

    def _emit(self, sample_pass: SamplePass, handle: Any, device: MigDevice) -> None:
        sample_pass.emit(
            "gpu_mig_info",
            1,
            (
                ("parent_uuid", sample_pass.uuid),
                ("gpu_instance", str(device.gpu_instance)),
                ("compute_instance", str(device.compute_instance)),
                ("profile", device.profile),
            ),
            device.uuid,
        )
        self._memory.raw = MEMORY_V2.ljust(_MEMORY_LAYOUT.size, b"\0")
        code = sample_pass.nvml.call("nvmlDeviceGetMemoryInfo_v2", handle, self._memory)
        for part, size in zip(_MEMORY, _MEMORY_LAYOUT.unpack_from(self._memory), strict=True):
            if part == "reserved":
                continue
            if code:
                sample_pass.mark_absent(f"gpu_mig_memory_{part}_bytes", sample_pass.nvml.reason_of(code))
            else:
                sample_pass.emit(f"gpu_mig_memory_{part}_bytes", size if size <= MAX_BYTES else nan, (), device.uuid)

    def _emit_activity(self, sample_pass: SamplePass, devices: list[MigDevice]) -> None:
        nvml = sample_pass.nvml
        sharers = Counter(device.gpu_instance for device in devices)
        for instance in set(self._chains) - set(sharers):
            self._chains.pop(instance).close(nvml)
        if devices:
            self._emit_gpm(sample_pass, devices, sharers)

    def _emit_gpm(self, sample_pass: SamplePass, devices: list[MigDevice], sharers: Counter[int]) -> None:
        nvml = sample_pass.nvml
        if self._gpm_due_s <= sample_pass.now_s:
            try:
                self._no_gpm = why_unsupported(nvml)
            except nvml.binding.NVMLError as error:
                self._no_gpm = nvml.reason(error)
            self._gpm_due_s = sample_pass.now_s + EVERY_60_S
        # GPM measures GPU instances, not the compute instances that share one.
        alone = [device for device in devices if sharers[device.gpu_instance] == 1]
        reason = self._no_gpm or ("shared_gpu_instance" if len(alone) < len(devices) else None)
        if reason is not None:
            for metric in _ACTIVITY_METRICS:
                sample_pass.mark_absent(metric, reason)
        if self._no_gpm is not None:
            return
        chains = [self._chains.setdefault(device.gpu_instance, GpmChain(_ACTIVITIES, device.gpu_instance)) for device in alone]
        try:
            take_samples(nvml, chains)
        except nvml.binding.NVMLError as error:
            for metric in _ACTIVITY_METRICS:
                sample_pass.mark_absent(metric, nvml.reason(error))
            return
        for device, chain in zip(alone, chains, strict=True):
            chain.emit(sample_pass, device.uuid)


def _identify(nvml: NvmlCalls, handle: Any, uuid: str, name: str) -> MigDevice:
    return MigDevice(
        uuid,
        nvml("nvmlDeviceGetGpuInstanceId", handle),
        nvml("nvmlDeviceGetComputeInstanceId", handle),
        _profile(nvml, handle, name),
    )


def _profile(nvml: NvmlCalls, handle: Any, name: str) -> str:
    """Return the profile, such as ``1g.10gb``: the end of the device's name, else derived from its attributes."""
    _, separator, profile = name.partition(" MIG ")
    if separator:
        return profile
    try:
        slices = nvml("nvmlDeviceGetAttributes", handle)
    except nvml.binding.NVMLError:
        return ""
    compute = "" if slices.computeInstanceSliceCount == slices.gpuInstanceSliceCount else f"{slices.computeInstanceSliceCount}c."
    return f"{compute}{slices.gpuInstanceSliceCount}g.{round(slices.memorySizeMB / 1024)}gb"
