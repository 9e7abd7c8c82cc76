"""What the recorder is told, and how it travels from the launcher to every rank: through the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import NoneType
from typing import Final, get_args

import msgspec

PREFIX: Final = "RANKSCOPE_"

# The schedule of profiled windows unless told otherwise: early enough to show something soon, seldom enough to cost little.
WINDOW_FIRST: Final = 20
WINDOW_STEPS: Final = 3
BUDGET: Final = 0.01
"""Share of the step time that the recorder may cost, windows included."""
EXPORTER_URL: Final = "http://127.0.0.1:9838/metrics"
OTLP_EVERY: Final = 100
RETAIN_BYTES: Final = 4 * 1024**3
"""Steps get three quarters of it (see ``store``): at 1.2 kB each, three months of steps of 3 s, or a month of steps of 1 s."""
PLAN_AHEAD_SECONDS: Final = 10.0
PLAN_AHEAD_STEPS: Final = 50


class RecorderSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings of one run; field ``run_dir`` is the variable ``RANKSCOPE_RUN_DIR``, and so on."""

    run_dir: str
    run_id: str
    name: str
    attempt: int = 0
    """Number of this start; torchrun's own restarts (``TORCHELASTIC_RESTART_COUNT``) are added to it."""
    start_unix_ns: int
    spool_dir: str | None = None
    """Folder for the ranks' Prometheus text files; ``None``: none are written."""
    scratch_dir: str | None = None
    """Folder on local memory that the launcher made and watches; ranks that cannot see it make their own."""
    budget: float = BUDGET
    window_first: int = WINDOW_FIRST
    window_every: int | None = None
    """0: a single window. ``None``: as often as ``budget`` allows, on steps that one rank announces to all."""
    window_steps: int = WINDOW_STEPS
    """0: no windows."""
    plan_ahead_seconds: float = PLAN_AHEAD_SECONDS
    """An announced window starts at least so long after it was chosen; shorter where ranks hear of it quickly, as in tests."""
    plan_ahead_steps: int = PLAN_AHEAD_STEPS
    """And at least so many steps."""
    keep_traces: int = 0
    """Keep the raw traces of the last so many windows."""
    retain_bytes: int | None = RETAIN_BYTES
    """How much a rank may keep in the run directory; then its oldest records are removed. ``None``: all is kept."""
    exporter_url: str | None = EXPORTER_URL
    """Where the node's exporter answers; one helper per host samples the GPUs from it. ``None``: nobody does."""
    otlp_every: int | None = None
    """Send every so manieth step as a trace over OTLP, to where the ``OTEL_EXPORTER_OTLP_*`` variables say. ``None``: none."""
    coordinates: str | None = None
    """This rank's place in the parallel layout as told by the user, ``dp=3,tp=0``; else what the process groups show."""
    simulated: bool = False
    launcher: str | None = None
    price_per_gpu_hour: float | None = None
    currency: str | None = None

    def environment(self) -> dict[str, str]:
        """The variables that carry these settings."""
        values = msgspec.to_builtins(self, str_keys=True)
        return {PREFIX + key.upper(): "" if value is None else _text(value) for key, value in values.items()}

    def elastic_attempt(self, environment: Mapping[str, str]) -> int:
        """The attempt that this process belongs to, the same on all its ranks."""
        restarts = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        return self.attempt + (int(restarts) if restarts.isdecimal() else 0)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def from_environment(environment: Mapping[str, str] = os.environ) -> RecorderSettings | None:
    """The settings of this process, or ``None`` when it was not launched with the recorder.

    Raises ``ValueError`` (``msgspec.ValidationError``) when a variable has been tampered with.
    """
    if not environment.get(PREFIX + "RUN_DIR"):
        return None
    values = {
        field.name: environment[variable] or (None if NoneType in get_args(field.type) else "")
        for field in msgspec.structs.fields(RecorderSettings)
        if (variable := PREFIX + field.name.upper()) in environment
    }
    return msgspec.convert(values, RecorderSettings, strict=False)
