"""The catalogue: every metric the exporter publishes by itself, and its collectors, read from ``catalogue.toml``.

The pages, OTLP, rules, boards and documentation take names from here. The ranks' own metrics, which the exporter only relays, are
the recorder's.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final, Literal

import msgspec


class Collector(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``--collector.NAME`` switches. ``asks_gpu``: it runs in the process of each GPU."""

    name: str
    default_on: bool
    asks_gpu: bool
    help: str


class DcgmName(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same quantity on the DCGM-compatible page: ``DCGM_FI_`` + name, value times ``times``, where ``labels`` are these.

    ``rate``: DCGM has the change per second of this counter. ``summed``: DCGM has the sum of several metrics of the catalogue.
    ``default_on``: it is there without a file of counters. Several series that fit are added up.
    """

    name: str
    type: Literal["gauge", "counter"]
    help: str
    times: float = 1
    labels: dict[str, str] = {}
    rate: bool = False
    summed: bool = False
    default_on: bool = True


class OtelName(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same quantity in OpenTelemetry: the instrument, its unit, and the attributes that tell it from its siblings.

    In an attribute, ``{label}`` stands for the value of a label of the series.
    """

    name: str
    kind: Literal["gauge", "counter", "updowncounter", "histogram"]
    unit: str
    times: float = 1
    attributes: dict[str, str] = {}


class CatalogueMetric(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One metric.

    ``unit`` is a base unit (``celsius``, ``bytes``, ``ratio``, ``watts``, ``joules``, ``hertz``, ``seconds``) or empty.
    ``source`` names the NVML call. ``collector`` is what switches it; ``exporter`` cannot be switched off.
    """

    name: str
    collector: str
    group: Literal["gpu", "job", "node", "rank", "exporter"]
    type: Literal["gauge", "counter"]
    unit: str
    labels: tuple[str, ...]
    help: str
    source: str
    dcgm: tuple[DcgmName, ...] = ()
    otel: OtelName | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    collector: tuple[Collector, ...]
    metric: tuple[CatalogueMetric, ...]


_FILE: Final = msgspec.toml.decode((files("rankscope.exporter") / "catalogue.toml").read_bytes(), type=_File)

COLLECTORS: Final[dict[str, Collector]] = {collector.name: collector for collector in _FILE.collector}

DEFAULT_COLLECTORS: Final = frozenset(name for name, collector in COLLECTORS.items() if collector.default_on)

CATALOGUE: Final[tuple[CatalogueMetric, ...]] = _FILE.metric

BY_NAME: Final[dict[str, CatalogueMetric]] = {metric.name: metric for metric in CATALOGUE}
