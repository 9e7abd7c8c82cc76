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

    def refresh(self, at: Pass) -> None:
        """Read the links if due; raises the first link's error if there is no link."""
        if self._links_due_s <= at.now_s:
            self._find(at)
        elif self._states_due_s <= at.now_s:
            self.up = {link: bool(at.ask("nvmlDeviceGetNvLinkState", at.ask.handle, link)) for link in self.up}
            self._states_due_s = at.now_s + SOMETIMES

    def _find(self, at: Pass) -> None:
        ask, found = at.ask, {}
        first_error: Any = None
        for link in range(_MOST_LINKS):
            try:
                found[link] = bool(ask("nvmlDeviceGetNvLinkState", ask.handle, link))
            except ask.nvml.NVMLError as error:
                first_error = first_error or error
                if ask.reason(error) in {"invalid_argument", "function_not_found"}:
                    break
        if not found:
            raise first_error
        self.up = found
        self._links_due_s, self._states_due_s = at.now_s + RARELY, at.now_s + SOMETIMES


class EachLink(Topic):
    """State of each link."""

    metrics = ("gpu_nvlink_link_up",)

    def __init__(self, links: Links) -> None:
        self._links = links

    def collect(self, at: Pass) -> None:
        """Emit one reading per link."""
        self._links.refresh(at)
        for link, up in self._links.up.items():
            at.emit(self.metrics[0], up, (("link", str(link)),))


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

    def collect(self, at: Pass) -> None:
        """Read the link states and emit the readings."""
        self._links.refresh(at)
        for state, wanted in (("up", True), ("down", False)):
            at.emit("gpu_nvlink_links", sum(up is wanted for up in self._links.up.values()), (("state", state),))
        self._emit_bytes(at)
        self._emit_errors(at)

    def _emit_bytes(self, at: Pass) -> None:
        for metric, key in _BYTES:
            value = at.fields.get(key, "first_sample")
            if isinstance(value, str):
                at.mark_absent(metric, value)
            else:
                at.emit(metric, value * 1024)

    def _emit_errors(self, at: Pass) -> None:
        if (_ERRORS[0][2], 0) in at.fields:
            self._errors = {kind: self._sum(at, each, total) for kind, each, total in _ERRORS}
            self._errors_due_s = at.now_s + SOMETIMES
        for kind, _, _ in _ERRORS:
            value = self._errors.get(kind, "first_sample")
            if isinstance(value, str):
                at.mark_absent("gpu_nvlink_errors_total", value, (("error", kind),))
            else:
                at.emit("gpu_nvlink_errors_total", value, (("error", kind),))

    def _sum(self, at: Pass, each: int | None, total: int) -> float | str:
        if each is not None:
            values = [at.fields.get((each, link), "first_sample") for link in self._links.up]
            numbers = [value for value in values if not isinstance(value, str)]
            # A sum without one of the links would decrease, which a counter must not.
            if len(numbers) == len(values):
                return sum(numbers)
        return at.fields[total, 0]


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

    def collect(self, at: Pass) -> None:
        """Emit the state, and the health if the fabric reports it."""
        if self._due_s <= at.now_s:
            self._ask(at)
            self._due_s = at.now_s + SOMETIMES
        at.emit("gpu_fabric_state", 1, (("state", self._state),))
        if self._healthy is None:
            at.mark_absent("gpu_fabric_healthy", "not_supported")
        else:
            at.emit("gpu_fabric_healthy", self._healthy)

    def _ask(self, at: Pass) -> None:
        ask = at.ask
        info = ask.nvml.c_nvmlGpuFabricInfoV_t()
        try:
            ask("nvmlDeviceGetGpuFabricInfoV", ask.handle, byref(info))
            mask = info.healthMask
        except ask.nvml.NVMLError_FunctionNotFound:
            info = ask.nvml.c_nvmlGpuFabricInfo_t()
            ask("nvmlDeviceGetGpuFabricInfo", ask.handle, byref(info))
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

    def collect(self, at: Pass) -> None:
        """Emit the status of each peer, read once a minute because the topology does not change while the driver runs."""
        if self._due_s <= at.now_s:
            self._reachable = _ask(at.ask, at.uuid)
            self._due_s = at.now_s + RARELY
        for labels, ok in self._reachable.items():
            at.emit(self.metrics[0], ok, labels)
        if not self._reachable:
            at.mark_absent(self.metrics[0], "no_peers")


def _ask(ask: NvmlCalls, own: str) -> dict[Labels, bool]:
    reachable: dict[Labels, bool] = {}
    for index in range(ask("nvmlDeviceGetCount")):
        peer = ask("nvmlDeviceGetHandleByIndex", index)
        uuid = ask("nvmlDeviceGetUUID", peer)
        if uuid == own:
            continue
        for capability, number in _CAPABILITIES:
            status = ask("nvmlDeviceGetP2PStatus", ask.handle, peer, number)
            reachable[("peer_uuid", uuid), ("capability", capability)] = status == _OK
    return reachable
