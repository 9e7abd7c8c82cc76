"""The monotonic clock of the recorder."""

from __future__ import annotations

from time import perf_counter_ns

now = perf_counter_ns
"""Nanoseconds since an arbitrary moment; on Linux the same moment for all processes of a machine."""
