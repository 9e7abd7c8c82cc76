"""Which DCGM fields the compatible page has: the usual ones, or those of a counters file as dcgm-exporter reads it."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, get_args

from rankscope.base.config_files import read_config_text
from rankscope.base.errors import InputError
from rankscope.exporter.catalogue import CATALOGUE
from rankscope.exporter.settings import ExporterSettings

LabelField = Literal["DCGM_FI_DRIVER_VERSION", "DCGM_FI_NVML_VERSION", "DCGM_FI_DEV_SERIAL", "DCGM_FI_DEV_VBIOS_VERSION"]
LABEL_FIELDS: Final[tuple[LabelField, ...]] = get_args(LabelField)

_TYPES: Final = ("gauge", "counter", "label")


@dataclass(frozen=True, slots=True)
class DcgmCounter:
    """One metric of the compatible page, with its full name."""

    name: str
    type: Literal["gauge", "counter"]
    help: str


@dataclass(frozen=True, slots=True)
class DcgmCounters:
    """Requested contents of the page: metrics, fields that become labels of every series, and ``refused`` names with reasons."""

    metrics: tuple[DcgmCounter, ...]
    labels: tuple[LabelField, ...]
    refused: tuple[tuple[str, str], ...] = ()

    @property
    def collectors(self) -> frozenset[str]:
        """The collectors that supply the metrics."""
        names = {counter.name for counter in self.metrics}
        return frozenset(row.collector for row in CATALOGUE for entry in row.dcgm if entry.full_name in names)


def default_counters() -> DcgmCounters:
    """Return the counters that dcgm-exporter publishes without a counters file."""
    return DcgmCounters(
        tuple(counter for counter, default_on in _counters_by_name().values() if default_on), ("DCGM_FI_DRIVER_VERSION",)
    )


def counters_of(settings: ExporterSettings) -> DcgmCounters | None:
    """Return the counters that the settings select; None without a compatible page. Raises ``InputError``."""
    if not settings.compat_dcgm:
        return None
    return read_counters(settings.compat_counters) if settings.compat_counters is not None else default_counters()


def with_collectors(settings: ExporterSettings, counters: DcgmCounters | None) -> ExporterSettings:
    """Enable the collectors that the counters need, except those that the user switched off; no change without ``gpu``."""
    if counters is None or "gpu" not in settings.collectors:
        return settings
    return replace(settings, collectors=settings.collectors | (counters.collectors - settings.collectors_off))


def read_counters(path: Path) -> DcgmCounters:
    """Read a counters file with lines ``NAME, type, help``; raises ``InputError`` that names the line."""
    return _counters(path, read_config_text(path).splitlines())


def _counters(path: Path, lines: Iterable[str]) -> DcgmCounters:
    counters = _counters_by_name()
    metrics: dict[str, DcgmCounter] = {}
    labels: dict[LabelField, None] = {}
    refused: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, kind, help_text = _record(path, number, line)
        if kind == "label":
            field = next((label for label in LABEL_FIELDS if label == name), None)
            if field is not None:
                labels[field] = None
            else:
                refused[name] = f"not a label this exporter has (it has {', '.join(LABEL_FIELDS)})"
        elif name not in counters:
            refused[name] = "not among the metrics of this exporter"
        else:
            # As in dcgm-exporter, the file decides on the type.
            metrics[name] = DcgmCounter(name, "counter" if kind == "counter" else "gauge", help_text)
    if not metrics:
        raise InputError(path, "no line names a metric that this exporter has: see the table in docs/exporter-metrics.md")
    return DcgmCounters(tuple(metrics.values()), tuple(sorted(labels)), tuple(refused.items()))


def _record(path: Path, number: int, line: str) -> tuple[str, str, str]:
    try:
        (fields,) = csv.reader([line], strict=True, skipinitialspace=True)
    except (csv.Error, ValueError) as error:
        raise InputError(path, f"{error}: a line is NAME, type, help", place=f"line {number}") from error
    # Commas in the help text need no quotes.
    name, kind, *help_parts = [*(field.strip() for field in fields), "", ""][: max(len(fields), 2)]
    if not name.startswith("DCGM_") or not name.replace("_", "").isalnum() or not name.isascii():
        raise InputError(path, f"{name[:80]!r} is no name of a DCGM field: a line is NAME, type, help", place=f"line {number}")
    if kind not in _TYPES:
        raise InputError(path, f"type {kind[:80]!r} of {name} is none of {', '.join(_TYPES)}", place=f"line {number}")
    return name, kind, ", ".join(help_parts)


def _counters_by_name() -> dict[str, tuple[DcgmCounter, bool]]:
    """Return DCGM name → counter, and whether it is on by default. The catalogue's first row with a name defines it."""
    counters: dict[str, tuple[DcgmCounter, bool]] = {}
    for row in CATALOGUE:
        for entry in row.dcgm:
            counters.setdefault(entry.full_name, (DcgmCounter(entry.full_name, entry.type, entry.help), entry.default_on))
    return counters
