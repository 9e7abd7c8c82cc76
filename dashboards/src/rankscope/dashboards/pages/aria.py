"""Attributes for screen readers."""

from __future__ import annotations

from typing import Any


def aria(**values: str) -> dict[str, Any]:
    """Return ARIA attributes to pass on with ``**``: ``aria(label="Ranks")`` -> ``{"aria-label": "Ranks"}``."""
    return {f"aria-{name}": value for name, value in values.items()}
