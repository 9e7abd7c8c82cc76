"""The one monotonic clock of the recorder."""

from __future__ import annotations

from time import perf_counter_ns

now = perf_counter_ns
"""Nanoseconds since some moment; on Linux the same for all processes of a machine."""
