"""NVLinks (state, bytes, errors), a GPU's registration with the NVSwitch fabric, and the GPUs it can reach peer to peer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from ctypes import byref
from dataclasses import dataclass
from typing import Any, Final

from rankscope.exporter.nvml.calls import IMPLAUSIBLE, is_all_ones, is_lasting
from rankscope.exporter.nvml.rows import EVERY_10_S, EVERY_60_S
from rankscope.exporter.nvml.sample_pass import FieldKey, SamplePass, SlowTopic, Topic
from rankscope.exporter.source import Absent, Reading

_MAX_LINKS: Final = 36
_ALL_LINKS: Final = 0xFFFFFFFF
_EACH_LINK: Final = None


@dataclass(frozen=True, slots=True)
class _LinkCounterSource:
    """Field with a counter: one value (``scope``), or one for each link. A value is multiplied by ``times``."""

    field: int
    scope: int | None = 0
    times: float = 1

    def keys(self, links: Iterable[int]) -> list[FieldKey]:
        """Return the fields with their scope."""
        return [(self.field, link) for link in links] if self.scope is _EACH_LINK else [(self.field, self.scope)]


# In the order of preference; which fields a GPU has depends on its generation (docs/exporter-metrics.md).
_BYTES: Final = {
    "gpu_nvlink_transmit_bytes_total": (_LinkCounterSource(138, _ALL_LINKS, 1024), _LinkCounterSource(202, _ALL_LINKS)),
    "gpu_nvlink_receive_bytes_total": (_LinkCounterSource(139, _ALL_LINKS, 1024), _LinkCounterSource(204, _ALL_LINKS)),
}
_ERRORS: Final = {
    "crc_flit": (_LinkCounterSource(163, _EACH_LINK), _LinkCounterSource(38)),
    "crc_data": (_LinkCounterSource(45),),
    "replay": (_LinkCounterSource(161, _EACH_LINK), _LinkCounterSource(52)),
    "recovery": (_LinkCounterSource(215, _ALL_LINKS), _LinkCounterSource(162, _EACH_LINK), _LinkCounterSource(59)),
    "ecc": (_LinkCounterSource(160),),
    "receive": (_LinkCounterSource(208, _ALL_LINKS),),
    "receive_remote": (_LinkCounterSource(209, _ALL_LINKS),),
    "receive_general": (_LinkCounterSource(210, _ALL_LINKS),),
    "malformed_packet": (_LinkCounterSource(206, _ALL_LINKS),),
    "buffer_overrun": (_LinkCounterSource(207, _ALL_LINKS),),
    "link_integrity": (_LinkCounterSource(211, _ALL_LINKS),),
    "transmit_discard": (_LinkCounterSource(212, _ALL_LINKS),),
}
_RECOVERIES: Final = {"succeeded": (_LinkCounterSource(213, _ALL_LINKS),), "failed": (_LinkCounterSource(214, _ALL_LINKS),)}
_PHYSICAL: Final = {"effective": (_LinkCounterSource(219, _ALL_LINKS),), "symbol": (_LinkCounterSource(221, _ALL_LINKS),)}

# Metric, label, and the sources of each value of the label; read every 10 s.
_BY_LABEL: Final = (
    ("gpu_nvlink_errors_total", "error", _ERRORS),
    ("gpu_nvlink_recoveries_total", "result", _RECOVERIES),
    ("gpu_nvlink_physical_errors_total", "error", _PHYSICAL),
)


class _LinkCounter:
    """Counter of all links together, from the first source that this GPU supports; it never changes to another source.

    ``value`` is the last value, or the reason why there is none.
    """

    def __init__(self, sources: tuple[_LinkCounterSource, ...]) -> None:
        self._sources = sources
        self._due_s = float("-inf")
        self.value: float | str = "first_sample"

    def wants(self, links: Iterable[int], now_s: float) -> list[FieldKey]:
        """Return the fields to read; none for a minute after the GPU supported none of them."""
        return [key for source in self._sources for key in source.keys(links)] if self._due_s <= now_s else []

    @property
    def is_of_another_generation(self) -> bool:
        """True for a counter of Blackwell on a GPU that does not support it."""
        newer = all(source.scope == _ALL_LINKS for source in self._sources)
        return newer and isinstance(self.value, str) and is_lasting(self.value)

    def update(self, sample_pass: SamplePass, links: Iterable[int]) -> None:
        """Take the value from the fields of the pass, if they were read; ``links`` are those that ``wants`` was called with."""
        reason = ""
        for source in self._sources:
            values = [sample_pass.fields.get(key) for key in source.keys(links)]
            if None in values or not values:
                return
            numbers = [value for value in values if isinstance(value, (int, float))]
            # A sum without one of the links would decrease, which a counter must not.
            if numbers and len(numbers) == len(values):
                self._sources, self.value = (source,), sum(numbers) * source.times
                return
            reasons = [value for value in values if isinstance(value, str)]
            reason = next((candidate for candidate in reasons if not is_lasting(candidate)), reasons[0])
            if not is_lasting(reason):
                break
        self.value = reason
        if is_lasting(reason):
            self._due_s = sample_pass.now_s + EVERY_60_S


class LinkStates:
    """State of each NVLink, shared by several topics; ``up`` maps link number to state."""

    def __init__(self) -> None:
        self.up: dict[int, bool] = {}
        self._states_due_s = self._links_due_s = float("-inf")

    def refresh(self, sample_pass: SamplePass) -> None:
        """Read the links if due; raises the first link's error if there is no link."""
        if self._links_due_s <= sample_pass.now_s:
            self._find(sample_pass)
        elif self._states_due_s <= sample_pass.now_s:
            self.up = {
                link: bool(sample_pass.nvml("nvmlDeviceGetNvLinkState", sample_pass.nvml.handle, link)) for link in self.up
            }
            self._states_due_s = sample_pass.now_s + EVERY_10_S

    def _find(self, sample_pass: SamplePass) -> None:
        nvml, states = sample_pass.nvml, {}
        first_error: Any = None
        for link in range(_MAX_LINKS):
            try:
                states[link] = bool(nvml("nvmlDeviceGetNvLinkState", nvml.handle, link))
            except nvml.binding.NVMLError as error:
                first_error = first_error or error
                if nvml.reason(error) == IMPLAUSIBLE:  # left out, the link would look lost
                    raise
                if nvml.reason(error) in {"invalid_argument", "function_not_found"}:
                    break
        if not states:
            raise first_error
        self.up = states
        self._links_due_s, self._states_due_s = sample_pass.now_s + EVERY_60_S, sample_pass.now_s + EVERY_10_S


class LinkStateTopic(Topic):
    """State of each link."""

    metrics = ("gpu_nvlink_link_up",)

    def __init__(self, links: LinkStates) -> None:
        self._links = links

    def collect(self, sample_pass: SamplePass) -> None:
        """Emit one reading per link."""
        self._links.refresh(sample_pass)
        for link, up in self._links.up.items():
            sample_pass.emit(self.metrics[0], up, (("link", str(link)),))


class NvLinksTopic(Topic):
    """Number of links by state, and bytes, errors and recoveries of all links together; all absent without any link."""

    metrics = ("gpu_nvlink_links", *_BYTES, *(metric for metric, _, _ in _BY_LABEL))
    has_fields = True

    def __init__(self, links: LinkStates) -> None:
        self._links = links
        self._bytes = {metric: _LinkCounter(sources) for metric, sources in _BYTES.items()}
        self._errors = [
            (metric, ((label, kind),), _LinkCounter(sources))
            for metric, label, kinds in _BY_LABEL
            for kind, sources in kinds.items()
        ]
        self._errors_due_s = float("-inf")
        self._wanted_counters: Sequence[_LinkCounter] = ()
        self._wanted_links: tuple[int, ...] = ()
        self._errors_read = False
        self._outcomes: list[Reading | Absent] = []

    def wants(self, now_s: float) -> Sequence[FieldKey]:
        """Return the fields of bytes, and every 10 s those of errors, once the links are known."""
        counters = [*self._bytes.values()]
        self._errors_read = bool(self._links.up) and self._errors_due_s <= now_s
        if self._errors_read:
            counters += [counter for _, _, counter in self._errors]
            self._errors_due_s = now_s + EVERY_10_S
        self._wanted_counters, self._wanted_links = counters, tuple(self._links.up)
        return [key for counter in counters for key in counter.wants(self._wanted_links, now_s)]

    def collect(self, sample_pass: SamplePass) -> None:
        """Read the link states and emit the readings."""
        self._links.refresh(sample_pass)
        for state, wanted in (("up", True), ("down", False)):
            sample_pass.emit("gpu_nvlink_links", sum(up is wanted for up in self._links.up.values()), (("state", state),))
        for counter in self._wanted_counters:
            counter.update(sample_pass, self._wanted_links)
        for metric, counter in self._bytes.items():
            if isinstance(counter.value, str):
                sample_pass.mark_absent(metric, counter.value)
            else:
                sample_pass.emit(metric, counter.value)
        if self._errors_read or not self._outcomes:
            self._outcomes = self._error_outcomes()
        sample_pass.add(self._outcomes)

    def _error_outcomes(self) -> list[Reading | Absent]:
        measured = {metric for metric, _, counter in self._errors if not isinstance(counter.value, str)}
        outcomes: list[Reading | Absent] = []
        for metric, labels, counter in self._errors:
            if not isinstance(counter.value, str):
                outcomes.append(Reading(metric, float(counter.value), labels))
            # A GPU before Blackwell lacks most kinds: that is not worth a series for each.
            elif not (metric in measured and counter.is_of_another_generation):
                outcomes.append(Absent(metric, counter.value, labels))
        return outcomes


_STATES: Final = ("not_supported", "not_started", "in_progress", "completed")
_STATE_ALL_ONES: Final = 0xFF
_FAILED: Final = "failed"
# Two bits each: 1 is true, 2 is false, 0 is not supported.
_FAULT_SHIFTS: Final = (0, 2, 4, 6)
_MISCONFIGURED_SHIFT: Final = 8
_MISCONFIGURED_MASK: Final = 0xF


class FabricTopic(SlowTopic):
    """Registration with the NVSwitch fabric, and the fabric's health if it reports it."""

    metrics = ("gpu_fabric_state", "gpu_fabric_healthy")
    every_s = EVERY_10_S

    def read(self, sample_pass: SamplePass) -> Iterator[Reading | Absent]:
        """Yield state and health."""
        nvml = sample_pass.nvml
        info = nvml.binding.c_nvmlGpuFabricInfoV_t()
        try:
            nvml("nvmlDeviceGetGpuFabricInfoV", nvml.handle, byref(info))
            mask = info.healthMask
        except nvml.binding.NVMLError_FunctionNotFound:
            info = nvml.binding.c_nvmlGpuFabricInfo_t()
            nvml("nvmlDeviceGetGpuFabricInfo", nvml.handle, byref(info))
            mask = 0
        # The state is a byte.
        nvml.check_numbers((info.state if info.state < _STATE_ALL_ONES else -1, info.status))
        state = _STATES[info.state] if info.state < len(_STATES) else f"state_{info.state}"
        if state == "completed" and info.status:
            state = _FAILED
        yield Reading("gpu_fabric_state", 1, (("state", state),))
        if mask and not is_all_ones(mask):
            yield Reading("gpu_fabric_healthy", float(not _is_sick(mask)))
        else:
            yield Absent("gpu_fabric_healthy", IMPLAUSIBLE if mask else "not_supported")


def _is_sick(mask: int) -> bool:
    misconfigured = mask >> _MISCONFIGURED_SHIFT & _MISCONFIGURED_MASK
    return misconfigured > 1 or any(mask >> shift & 3 == 1 for shift in _FAULT_SHIFTS)


_CAPABILITIES: Final = (("read", 0), ("write", 1), ("nvlink", 2), ("atomics", 3))
_OK: Final = 0


class PeerToPeerTopic(SlowTopic):
    """Peer-to-peer access to each other GPU: one series per peer and capability."""

    metrics = ("gpu_p2p_status",)
    every_s = EVERY_60_S  # the topology does not change while the driver runs

    def read(self, sample_pass: SamplePass) -> Iterator[Reading | Absent]:
        """Yield the status of each peer and capability."""
        nvml, peers = sample_pass.nvml, 0
        for index in range(nvml("nvmlDeviceGetCount")):
            peer = nvml("nvmlDeviceGetHandleByIndex", index)
            uuid = nvml("nvmlDeviceGetUUID", peer)
            if uuid == sample_pass.uuid:
                continue
            peers += 1
            for capability, number in _CAPABILITIES:
                status = nvml("nvmlDeviceGetP2PStatus", nvml.handle, peer, number)
                yield Reading(self.metrics[0], float(status == _OK), (("peer_uuid", uuid), ("capability", capability)))
        if not peers:
            yield Absent(self.metrics[0], "no_peers")
