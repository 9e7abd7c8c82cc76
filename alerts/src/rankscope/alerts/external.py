"""Series that rules use and that neither ranks nor the exporter publish, read from ``rules/external.toml``."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

import msgspec


class ExternalMetric(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A series of somebody else's: its name, who publishes it, and those of its ``labels`` that are relied on."""

    name: str
    source: str = msgspec.field(name="from")
    labels: tuple[str, ...]


class _ExternalFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    metric: tuple[ExternalMetric, ...]


EXTERNAL: Final = msgspec.toml.decode((files("rankscope.alerts") / "rules" / "external.toml").read_bytes(), type=_ExternalFile).metric
