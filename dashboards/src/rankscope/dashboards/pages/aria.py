"""Attributes for screen readers."""

from __future__ import annotations

from typing import Any


def aria(**values: str) -> dict[str, Any]:
    """``aria(label="Ranks")`` -> ``{"aria-label": "Ranks"}``, to be passed on with ``**``."""
    return {f"aria-{name}": value for name, value in values.items()}
