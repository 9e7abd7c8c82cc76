"""NVLinks (state, bytes, errors), a GPU's registration with the NVSwitch fabric, and the GPUs it can reach peer to peer."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref
from typing import Any, Final

from rankscope.exporter.nvml.calls import NvmlCalls
from rankscope.exporter.nvml.one_pass import FieldKey, Pass, Topic
from rankscope.exporter.nvml.rows import RARELY, SOMETIMES
from rankscope.exporter.source import Labels

_MOST_LINKS: Final = 36
_ALL_LINKS: Final = 0xFFFFFFFF
_BYTES: Final = (("gpu_nvlink_transmit_bytes_total", (138, _ALL_LINKS)), ("gpu_nvlink_receive_bytes_total", (139, _ALL_LINKS)))

# Error label, field of each link (Hopper and newer), field of the total of all links (older GPUs).
_ERRORS: Final = (("crc_flit", 163, 38), ("crc_data", None, 45), ("replay", 161, 52), ("recovery", 162, 59), ("ecc", None, 160))


class Links:
    """State of each NVLink, shared by several topics; ``up`` maps link number to state."""

    def __init__(self) -> None:
        self.up: dict[int, bool] = {}
        self._states_due_s = self._links_due_s = float("-inf")

    def refresh(self, sample_pass: Pass) -> None:
        """Read the links if due; raises the first link's error if there is no link."""
        if self._links_due_s <= sample_pass.now_s:
            self._find(sample_pass)
        elif self._states_due_s <= sample_pass.now_s:
            self.up = {
                link: bool(sample_pass.nvml("nvmlDeviceGetNvLinkState", sample_pass.nvml.handle, link)) for link in self.up
            }
            self._states_due_s = sample_pass.now_s + SOMETIMES

    def _find(self, sample_pass: Pass) -> None:
        nvml, found = sample_pass.nvml, {}
        first_error: Any = None
        for link in range(_MOST_LINKS):
            try:
                found[link] = bool(nvml("nvmlDeviceGetNvLinkState", nvml.handle, link))
            except nvml.binding.NVMLError as error:
                first_error = first_error or error
                if nvml.reason(error) in {"invalid_argument", "function_not_found"}:
                    break
        if not found:
            raise first_error
        self.up = found
        self._links_due_s, self._states_due_s = sample_pass.now_s + RARELY, sample_pass.now_s + SOMETIMES


class EachLink(Topic):
    """State of each link."""

    metrics = ("gpu_nvlink_link_up",)

    def __init__(self, links: Links) -> None:
        self._links = links

    def collect(self, sample_pass: Pass) -> None:
        """Emit one reading per link."""
        self._links.refresh(sample_pass)
        for link, up in self._links.up.items():
            sample_pass.emit(self.metrics[0], up, (("link", str(link)),))


class NvLinks(Topic):
    """Number of links by state, and bytes and errors of all links together; all absent without any link."""

    metrics = (
        "gpu_nvlink_links",
        *(metric for metric, _ in _BYTES),
        "gpu_nvlink_errors_total",
    )
    has_fields = True

    def __init__(self, links: Links) -> None:
        self._links = links
        self._errors: dict[str, float | str] = {}
        self._errors_due_s = float("-inf")

    def wants(self, now_s: float) -> Sequence[FieldKey]:
        """Return the fields of bytes, and every 10 s those of errors, once the links are known."""
        keys = [key for _, key in _BYTES]
        if self._links.up and self._errors_due_s <= now_s:
            for _, each, total in _ERRORS:
                keys.append((total, 0))
                if each is not None:
                    keys += [(each, link) for link in self._links.up]
        return keys

    def collect(self, sample_pass: Pass) -> None:
        """Read the link states and emit the readings."""
        self._links.refresh(sample_pass)
        for state, wanted in (("up", True), ("down", False)):
            sample_pass.emit("gpu_nvlink_links", sum(up is wanted for up in self._links.up.values()), (("state", state),))
        self._emit_bytes(sample_pass)
        self._emit_errors(sample_pass)

    def _emit_bytes(self, sample_pass: Pass) -> None:
        for metric, key in _BYTES:
            value = sample_pass.fields.get(key, "first_sample")
            if isinstance(value, str):
                sample_pass.mark_absent(metric, value)
            else:
                sample_pass.emit(metric, value * 1024)

    def _emit_errors(self, sample_pass: Pass) -> None:
        if (_ERRORS[0][2], 0) in sample_pass.fields:
            self._errors = {kind: self._sum(sample_pass, each, total) for kind, each, total in _ERRORS}
            self._errors_due_s = sample_pass.now_s + SOMETIMES
        for kind, _, _ in _ERRORS:
            value = self._errors.get(kind, "first_sample")
            if isinstance(value, str):
                sample_pass.mark_absent("gpu_nvlink_errors_total", value, (("error", kind),))
            else:
                sample_pass.emit("gpu_nvlink_errors_total", value, (("error", kind),))

    def _sum(self, sample_pass: Pass, each: int | None, total: int) -> float | str:
        if each is not None:
            values = [sample_pass.fields.get((each, link), "first_sample") for link in self._links.up]
            numbers = [value for value in values if not isinstance(value, str)]
            # A sum without one of the links would decrease, which a counter must not.
            if len(numbers) == len(values):
                return sum(numbers)
        return sample_pass.fields[total, 0]


_STATES: Final = ("not_supported", "not_started", "in_progress", "completed")
_FAILED: Final = "failed"
# Two bits each: 1 is true, 2 is false, 0 is not supported.
_TROUBLE_SHIFTS: Final = (0, 2, 4, 6)
_MISCONFIGURED_SHIFT: Final = 8
_MISCONFIGURED_MASK: Final = 0xF


class Fabric(Topic):
    """Registration with the NVSwitch fabric, and the fabric's health."""

    metrics = ("gpu_fabric_state", "gpu_fabric_healthy")

    def __init__(self) -> None:
        self._due_s = float("-inf")
        self._state = ""
        self._healthy: bool | None = None

    def collect(self, sample_pass: Pass) -> None:
        """Emit the state, and the health if the fabric reports it."""
        if self._due_s <= sample_pass.now_s:
            self._read(sample_pass)
            self._due_s = sample_pass.now_s + SOMETIMES
        sample_pass.emit("gpu_fabric_state", 1, (("state", self._state),))
        if self._healthy is None:
            sample_pass.mark_absent("gpu_fabric_healthy", "not_supported")
        else:
            sample_pass.emit("gpu_fabric_healthy", self._healthy)

    def _read(self, sample_pass: Pass) -> None:
        nvml = sample_pass.nvml
        info = nvml.binding.c_nvmlGpuFabricInfoV_t()
        try:
            nvml("nvmlDeviceGetGpuFabricInfoV", nvml.handle, byref(info))
            mask = info.healthMask
        except nvml.binding.NVMLError_FunctionNotFound:
            info = nvml.binding.c_nvmlGpuFabricInfo_t()
            nvml("nvmlDeviceGetGpuFabricInfo", nvml.handle, byref(info))
            mask = 0
        self._state = _STATES[info.state] if info.state < len(_STATES) else f"state_{info.state}"
        if self._state == "completed" and info.status:
            self._state = _FAILED
        self._healthy = None if not mask else not _is_sick(mask)


def _is_sick(mask: int) -> bool:
    misconfigured = mask >> _MISCONFIGURED_SHIFT & _MISCONFIGURED_MASK
    return misconfigured > 1 or any(mask >> shift & 3 == 1 for shift in _TROUBLE_SHIFTS)


_CAPABILITIES: Final = (("read", 0), ("write", 1), ("nvlink", 2), ("atomics", 3))
_OK: Final = 0


class PeerToPeer(Topic):
    """Peer-to-peer access to each other GPU: one series per peer and capability."""

    metrics = ("gpu_p2p_status",)

    def __init__(self) -> None:
        self._due_s = float("-inf")
        self._reachable: dict[Labels, bool] = {}

    def collect(self, sample_pass: Pass) -> None:
        """Emit the status of each peer, read once a minute because the topology does not change while the driver runs."""
        if self._due_s <= sample_pass.now_s:
            self._reachable = _read(sample_pass.nvml, sample_pass.uuid)
            self._due_s = sample_pass.now_s + RARELY
        for labels, ok in self._reachable.items():
            sample_pass.emit(self.metrics[0], ok, labels)
        if not self._reachable:
            sample_pass.mark_absent(self.metrics[0], "no_peers")


def _read(nvml: NvmlCalls, own: str) -> dict[Labels, bool]:
    reachable: dict[Labels, bool] = {}
    for index in range(nvml("nvmlDeviceGetCount")):
        peer = nvml("nvmlDeviceGetHandleByIndex", index)
        uuid = nvml("nvmlDeviceGetUUID", peer)
        if uuid == own:
            continue
        for capability, number in _CAPABILITIES:
            status = nvml("nvmlDeviceGetP2PStatus", nvml.handle, peer, number)
            reachable[("peer_uuid", uuid), ("capability", capability)] = status == _OK
    return reachable
