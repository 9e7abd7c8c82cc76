"""The catalogue: every metric the exporter publishes by itself, read from ``catalogue.toml``.

Rules, boards and documentation take names from here. The ranks' own metrics, which the exporter only relays, are the recorder's.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final, Literal

import msgspec


class CatalogueMetric(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One metric.

    ``unit`` is a base unit (``celsius``, ``bytes``, ``ratio``, ``watts``, ``joules``, ``hertz``, ``seconds``) or empty.
    ``source`` names the NVML call; ``dcgm`` and ``otel`` the same quantity's names elsewhere, empty where there is none.
    """

    name: str
    group: Literal["gpu", "rank", "exporter"]
    type: Literal["gauge", "counter"]
    unit: str
    labels: tuple[str, ...]
    help: str
    source: str
    dcgm: str
    otel: str
    default_on: bool = True


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    metric: tuple[CatalogueMetric, ...]


CATALOGUE: Final[tuple[CatalogueMetric, ...]] = msgspec.toml.decode(
    (files("rankscope.exporter") / "catalogue.toml").read_bytes(), type=_File
).metric

BY_NAME: Final[dict[str, CatalogueMetric]] = {metric.name: metric for metric in CATALOGUE}
