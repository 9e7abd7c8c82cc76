"""Analysis of chosen steps of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Synthetic = Callable[..., Any]
