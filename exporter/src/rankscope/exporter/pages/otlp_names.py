"""What each metric is called in OpenTelemetry: by the hardware conventions where they have a word, else by an open extension."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from rankscope.exporter.catalogue import BY_NAME, OtelName
from rankscope.exporter.pages.exposition import Kind
from rankscope.exporter.source import Labels

# What longer than this a rank calls its metric is no name for an instrument.
_LONGEST: Final = 200
_UNITS: Final = {
    "celsius": "Cel",
    "bytes": "By",
    "ratio": "1",
    "watts": "W",
    "joules": "J",
    "hertz": "Hz",
    "seconds": "s",
}


@lru_cache(maxsize=1024)
def otel_name(name: str, kind: Kind) -> OtelName | None:
    """The instrument for a metric of the catalogue, or for one that a rank brought; None where there is none.

    Identity (``…_info``) is in attributes there, and what the exporter says about itself stays on its own page.
    """
    row = BY_NAME.get(name)
    if row is not None and row.otel is not None:
        return row.otel
    if name.endswith("_info") or len(name) > _LONGEST or (row is not None and row.group == "exporter"):
        return None
    return _extension(name, kind)


def attributes(otel: OtelName, labels: Labels) -> dict[str, str]:
    """The attributes of a series besides those of its GPU: the instrument's own, or each label as ``rankscope.label``."""
    given = dict(labels)
    if otel.attributes:
        return {key: value.format_map(given) for key, value in otel.attributes.items()}
    return {f"rankscope.{label}": value for label, value in labels if label != "uuid"}


def _extension(name: str, kind: Kind) -> OtelName:
    """``gpu_sm_active_seconds_total`` is ``rankscope.gpu.sm_active_time`` in ``s``: units have a field of their own."""
    words = name.removesuffix("_total")
    unit = "1"
    for ours, theirs in _UNITS.items():
        if words.endswith(f"_{ours}_per_second"):
            words, unit = words.removesuffix(f"_{ours}_per_second") + "_rate", f"{theirs}/s"
        elif words.endswith(f"_{ours}"):
            # A counter of seconds has a sibling that is the ratio.
            words = words.removesuffix(f"_{ours}") + ("_time" if ours == "seconds" and kind == "counter" else "")
            unit = theirs
    area, _, rest = words.partition("_")
    return OtelName(name=f"rankscope.{area}.{rest}", kind=kind, unit=unit)
