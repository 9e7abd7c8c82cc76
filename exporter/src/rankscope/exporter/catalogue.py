"""The catalogue: every metric the exporter publishes by itself, and its collectors, read from ``catalogue.toml``.

Pages, OTLP, rules, dashboards and documentation take names from here. The recorder defines the ranks' own metrics, which the
exporter only relays.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final, Literal

import msgspec


class Collector(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A collector, enabled by ``--collector.NAME``. ``reads_gpu``: it runs in the process of each GPU."""

    name: str
    help: str
    default_on: bool = True
    reads_gpu: bool = True


class DcgmName(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Name of a metric on the DCGM-compatible page: ``prefix`` + ``name``; the value is multiplied by ``times``.

    Attributes:
        prefix: ``DCGM_EXP_`` for what dcgm-exporter computes itself.
        labels: only series with these labels count; several matching series are summed.
        rate: DCGM publishes the change per second of this counter.
        summed: DCGM publishes the sum of several metrics of the catalogue.
        keep: labels of our series that DCGM's have, too, and their names there.
        add: labels that all series of DCGM have.
        default_on: published also without a counters file.
    """

    name: str
    prefix: Literal["DCGM_FI_", "DCGM_EXP_"] = "DCGM_FI_"
    type: Literal["gauge", "counter"]
    help: str
    times: float = 1
    labels: dict[str, str] = {}
    rate: bool = False
    summed: bool = False
    keep: dict[str, str] = {}
    add: dict[str, str] = {}
    default_on: bool = True

    @property
    def full_name(self) -> str:
        """The name on the page."""
        return f"{self.prefix}{self.name}"


class OtelName(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Name of a metric in OpenTelemetry: instrument, unit, and the attributes that distinguish it within the instrument.

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
    ``source`` names the NVML call. ``collector`` is the collector that enables it; ``exporter`` cannot be disabled.
    """

    name: str
    collector: str
    group: Literal["gpu", "job", "node", "rank", "exporter"]
    type: Literal["gauge", "counter"]
    help: str
    source: str
    unit: str = ""
    labels: tuple[str, ...] = ("uuid",)
    dcgm: tuple[DcgmName, ...] = ()
    otel: OtelName | None = None


class _CatalogueFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    collector: tuple[Collector, ...]
    metric: tuple[CatalogueMetric, ...]


_FILE: Final = msgspec.toml.decode((files("rankscope.exporter") / "catalogue.toml").read_bytes(), type=_CatalogueFile)

COLLECTORS: Final[dict[str, Collector]] = {collector.name: collector for collector in _FILE.collector}

DEFAULT_COLLECTORS: Final = frozenset(name for name, collector in COLLECTORS.items() if collector.default_on)

CATALOGUE: Final[tuple[CatalogueMetric, ...]] = _FILE.metric

BY_NAME: Final[dict[str, CatalogueMetric]] = {metric.name: metric for metric in CATALOGUE}
