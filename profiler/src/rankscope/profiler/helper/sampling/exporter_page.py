"""Page of the node's exporter: its fetch over HTTP, within bounds of time and size, and the GPU series on it that a run keeps.

Metric names are those of the exporter's catalogue; a value that the page lacks is ``None`` in the sample.
"""

from __future__ import annotations

import base64
import math
import re
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from rankscope.runs.records import HardwareSample

NO_GPU: Final = "the exporter shows no GPU"

_LINE: Final = re.compile(r"(\w+)\{(.*)\} (\S+)(?: -?\d+)?")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\[\\n"])*)"(?:,|$)')
_ESCAPE: Final = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class _SampleField:
    """Target field of a metric in a sample: the sum of the metric's series that have ``label``."""

    field: str
    is_integer: bool = False
    label: tuple[str, str] | None = None


_SAMPLED_METRICS: Final[dict[str, _SampleField]] = {
    "gpu_utilization_ratio": _SampleField("utilization_ratio"),
    "gpu_memory_used_bytes": _SampleField("memory_used_bytes", is_integer=True),
    "gpu_memory_total_bytes": _SampleField("memory_total_bytes", is_integer=True),
    "gpu_mig_memory_used_bytes": _SampleField("memory_used_bytes", is_integer=True),
    "gpu_mig_memory_total_bytes": _SampleField("memory_total_bytes", is_integer=True),
    "gpu_temperature_celsius": _SampleField("temperature_celsius"),
    "gpu_temperature_margin_celsius": _SampleField("temperature_margin_celsius"),
    "gpu_power_watts": _SampleField("power_watts"),
    "gpu_power_limit_watts": _SampleField("power_limit_watts"),
    "gpu_clock_hertz": _SampleField("sm_clock_hertz", label=("clock", "sm")),
    "gpu_clock_max_hertz": _SampleField("sm_clock_max_hertz", label=("clock", "sm")),
    "gpu_xid_errors_total": _SampleField("xid_errors", is_integer=True),
    "gpu_ecc_errors_total": _SampleField("ecc_uncorrected_errors", is_integer=True, label=("error", "uncorrected")),
    "gpu_pcie_replays_total": _SampleField("pcie_replays", is_integer=True),
    "gpu_nvlink_errors_total": _SampleField("nvlink_errors", is_integer=True),
    "gpu_pcie_link_width": _SampleField("pcie_link_width", is_integer=True),
    "gpu_pcie_link_generation": _SampleField("pcie_link_generation", is_integer=True),
    "gpu_nvlink_links": _SampleField("nvlinks_down", is_integer=True, label=("state", "down")),
}
_VIDEO: Final = (68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139)
PROGRAMS: Final = frozenset(map(str, (8, 11, 13, 25, 31, 43, 45, 69, 137, 174, *_VIDEO)))
"""Codes of the Xid errors that programs cause, according to the exporter's table."""

_XIDS, _OF_PROGRAMS = "gpu_xid_errors_total", "xid_errors_of_programs"
_INFO, _MIG_INFO, _UP, _DOWN, _THROTTLE = "gpu_info", "gpu_mig_info", "gpu_up", "gpu_down_info", "gpu_throttle_active"
_WANTED: Final = frozenset({*_SAMPLED_METRICS, _INFO, _MIG_INFO, _UP, _DOWN, _THROTTLE})


@dataclass(slots=True)
class _GpuValues:
    index: int | None = None
    parent: str | None = None
    simulated: bool = False
    up: bool = True
    down: str = "no reason given"
    throttle: list[str] | None = None
    values: dict[str, float] = field(default_factory=dict)


def read_page(page: bytes, unix_ns: int) -> list[HardwareSample]:
    """Return a sample per GPU and MIG device; it has ``missing`` set if the exporter gets no answer from the GPU.

    Raises ``ValueError`` if a needed series cannot be parsed: with half a page, GPUs would seem to have disappeared.
    """
    gpus: dict[str, _GpuValues] = {}
    for line in page.decode().split("\n"):
        name = line[: line.find("{")]
        if name in _WANTED:
            labels, value = _series(line)
            _take(gpus.setdefault(labels.pop("uuid", ""), _GpuValues()), name, labels, value)
    gpus.pop("", None)
    for gpu in gpus.values():
        if gpu.parent in gpus:
            gpu.simulated = gpus[gpu.parent].simulated
    return [_sample(uuid, gpu, unix_ns) for uuid, gpu in gpus.items()]


def _series(line: str) -> tuple[dict[str, str], float]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError("a line of it is not in the Prometheus text format")
    labels: dict[str, str] = {}
    at, text = 0, match[2]
    while at < len(text):
        label = _LABEL.match(text, at)
        if label is None:
            raise ValueError("the labels of a line of it are not in the Prometheus text format")
        labels[label[1]] = _ESCAPE.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], label[2])
        at = label.end()
    return labels, float(match[3])


def _take(gpu: _GpuValues, name: str, labels: dict[str, str], value: float) -> None:
    if name == _INFO:
        gpu.index = int(labels["index"]) if labels.get("index", "").isdecimal() else None
        gpu.simulated = labels.get("simulated") == "true"
    elif name == _MIG_INFO:
        gpu.parent = labels.get("parent_uuid")
    elif name == _UP:
        gpu.up = value != 0
    elif name == _DOWN:
        gpu.down = labels.get("reason", gpu.down)
    elif name == _THROTTLE:
        gpu.throttle = [*(gpu.throttle or []), *([labels["reason"]] if value == 1 and "reason" in labels else [])]
    else:
        sampled_metric = _SAMPLED_METRICS[name]
        if math.isfinite(value) and (
            sampled_metric.label is None or labels.get(sampled_metric.label[0]) == sampled_metric.label[1]
        ):
            for field in (sampled_metric.field, *([_OF_PROGRAMS] if name == _XIDS and labels.get("xid") in PROGRAMS else [])):
                gpu.values[field] = gpu.values.get(field, 0) + value


def _sample(uuid: str, gpu: _GpuValues, unix_ns: int) -> HardwareSample:
    if not gpu.up:
        missing = f"the exporter gets no answer from this GPU: {gpu.down}"
        return HardwareSample(
            unix_ns=unix_ns, gpu_uuid=uuid, gpu_index=gpu.index, missing=missing, simulated=gpu.simulated, parent_uuid=gpu.parent
        )
    integer_fields = {
        _OF_PROGRAMS,
        *(sampled_metric.field for sampled_metric in _SAMPLED_METRICS.values() if sampled_metric.is_integer),
    }
    values = {name: int(value) if name in integer_fields else value for name, value in gpu.values.items()}
    return HardwareSample(
        unix_ns=unix_ns,
        gpu_uuid=uuid,
        gpu_index=gpu.index,
        simulated=gpu.simulated,
        parent_uuid=gpu.parent,
        throttle_reasons=gpu.throttle,
        **values,  # type: ignore[arg-type]  # names and types are those of the table
    )


CONNECT_SECONDS: Final = 2.0
DEADLINE_SECONDS: Final = 4.0
"""Longest time for the whole page, even if it arrives slowly."""
MAX_PAGE_BYTES: Final = 2 * 1024 * 1024
"""Largest size of a page; one of 16 GPUs is a tenth of it."""


class ScrapeError(Exception):
    """Raised when there is no page; the message is the reason and contains no credentials."""


@dataclass(frozen=True, slots=True)
class PageTarget:
    """Location of a page; ``shown`` is its address without user and password."""

    secure: bool
    host: str
    port: int | None
    path: str
    authorization: str | None = field(repr=False)
    shown: str


def parse_target(url: str) -> PageTarget:
    """Parse a URL. Raises ``ValueError`` if it is not a valid http or https URL, without quoting a possible password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError("the exporter's address is not a URL") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("the exporter's address must begin with http:// or https:// and name a host")
    path = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
    if not (path + parts.hostname).isascii() or any(letter.isspace() for letter in path + parts.hostname):
        raise ValueError("the exporter's address holds characters that a URL cannot")
    authorization = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = "Basic " + base64.b64encode(pair.encode()).decode()
    return PageTarget(
        secure=parts.scheme == "https",
        host=parts.hostname,
        port=port,
        path=path,
        authorization=authorization,
        shown=f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}",
    )


def fetch(target: PageTarget) -> bytes:
    """Return the page. Follows no redirects and uses no proxy. Raises ``ScrapeError``."""
    # Imported here: three megabytes of modules that only one helper per host needs.
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    kind = HTTPSConnection if target.secure else HTTPConnection
    connection = kind(target.host, target.port, timeout=CONNECT_SECONDS)
    late = threading.Event()
    try:
        connection.connect()
        alarm = threading.Timer(DEADLINE_SECONDS, _hang_up, (connection.sock, late))
        alarm.daemon = True
        alarm.start()
        try:
            headers = {"Accept": "text/plain;version=0.0.4", "User-Agent": "rankscope-recorder", "Connection": "close"}
            if target.authorization is not None:
                headers["Authorization"] = target.authorization
            connection.request("GET", target.path, headers=headers)
            with connection.getresponse() as response:
                if response.status != 200:
                    raise ScrapeError(f"it answered with status {response.status}")
                page = response.read(MAX_PAGE_BYTES + 1)
                cut_off = bool(response.length) and len(page) <= MAX_PAGE_BYTES
        finally:
            alarm.cancel()
    except (OSError, HTTPException, ValueError) as error:
        reason = "it took too long" if late.is_set() else getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ScrapeError(reason) from error
    finally:
        connection.close()
    if late.is_set() or cut_off:
        raise ScrapeError("it took too long" if late.is_set() else "the page was cut off")
    if len(page) > MAX_PAGE_BYTES:
        raise ScrapeError(f"the page has more than {MAX_PAGE_BYTES} bytes")
    return page


def _hang_up(connected: socket.socket, late: threading.Event) -> None:
    late.set()
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
