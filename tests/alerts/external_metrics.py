"""Metrics of other exporters that the rules use: ``external.toml``."""

from __future__ import annotations

from importlib.resources import files

import msgspec


class ExternalMetric(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    source: str = msgspec.field(name="from")
    labels: tuple[str, ...]


EXTERNAL = msgspec.toml.decode(
    (files("rankscope.alerts") / "rules" / "external.toml").read_bytes(), type=dict[str, tuple[ExternalMetric, ...]]
)["metric"]
