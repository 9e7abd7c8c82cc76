"""Settings of the recorder, which travel from the launcher to every rank through the environment."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Final, Self, get_args

import msgspec

from rankscope.runs.paths import SPOOL_DIR

PREFIX: Final = "RANKSCOPE_"
SITE_FOLDER: Final = Path(__file__).parent / "_site"
"""Folder that attaches the recorder to every Python process that has it first on PYTHONPATH."""

# Default schedule of profiled windows: early enough to show results soon, rare enough to cost little.
WINDOW_FIRST: Final = 20
WINDOW_STEPS: Final = 3
BUDGET: Final = 0.01
"""Share of the step time that the recorder may cost, windows included."""
EXPORTER_URL: Final = "http://127.0.0.1:9838/metrics"
RETAIN_BYTES: Final = 4 * 1024**3
"""Default limit of a rank's records. Steps get five eighths of it (see ``store``), 232 bytes each: 12 million steps."""
STACKS_SECONDS: Final = 20.0
PLAN_AHEAD_SECONDS: Final = 10.0
PLAN_AHEAD_STEPS: Final = 50
_WITHOUT_OPTION: Final = ("coordinates", "plan_ahead_seconds", "plan_ahead_steps", "stacks_seconds")
"""Settings without a command-line option, which the user sets through environment variables only."""


class RecordingOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a user may choose, the same under ``rankscope run``, in ``StepProfiler`` and in the callbacks of frameworks."""

    spool_dir: str | None = None
    """Folder for the ranks' Prometheus text files; ``None``: none are written."""
    budget: float = BUDGET
    """Share of the step time that the recorder may cost, windows included. It sets how often they come, unless ``window_every``
    does."""
    window_first: int = WINDOW_FIRST
    """First profiled step; on a GPU later, when ``budget`` covers it, unless ``window_every`` is set."""
    window_every: int | None = None
    """Steps from one window to the next. 0: a single window. ``None``: as often as ``budget`` allows, announced by one rank."""
    window_steps: int = WINDOW_STEPS
    """Steps per window; 0: no windows."""
    keep_traces: int = 0
    """Number of latest windows whose raw traces are kept."""
    retain_bytes: int | None = RETAIN_BYTES
    """Limit of a rank's records in the run directory; beyond it the oldest are removed. ``None``: all are kept."""
    exporter_url: str | None = EXPORTER_URL
    """Address of the node's exporter; one helper per host samples the GPUs from it. ``None``: no sampling."""
    otlp_every: int | None = None
    """Interval in steps of traces sent over OTLP to the target of the ``OTEL_EXPORTER_OTLP_*`` variables. ``None``: none."""
    stacks_seconds: float | None = STACKS_SECONDS
    """Interval of samples of the training thread's Python stack, which the helper takes with py-spy. ``None``: none."""
    memory_snapshot: bool = False
    """True to record the allocations of GPU memory, and to keep a snapshot of them when a rank runs out of it."""
    coordinates: str | None = None
    """This rank's place in the parallel layout as set by the user, ``dp=3,tp=0``; ``None``: the process groups show it."""
    simulated: bool = False
    """True if the GPU readings of this node are simulated."""
    price_per_gpu_hour: float | None = None
    currency: str | None = None

    def __post_init__(self) -> None:
        """Validate the numbers, also after decoding. Raises ``ValueError`` for a number out of range."""
        self._check("budget", 0 < self.budget <= 1, "a share of more than 0 and at most 1")
        self._check("window_first", self.window_first >= 1, "1 or more")
        for name in ("window_every", "window_steps", "keep_traces"):
            self._check(name, (getattr(self, name) or 0) >= 0, "0 or more")
        self._check("retain_bytes", self.retain_bytes is None or self.retain_bytes >= 1, "1 or more")
        self._check("stacks_seconds", self.stacks_seconds is None or 0 < self.stacks_seconds < math.inf, "more than 0")
        self._check("otlp_every", self.otlp_every is None or self.otlp_every >= 1, "1 or more")
        price = self.price_per_gpu_hour
        self._check("price_per_gpu_hour", price is None or 0 <= price < math.inf, "0 or more")

    def chosen(self) -> dict[str, Any]:
        """Return the values of these options alone, without those that a derived class adds."""
        return {name: getattr(self, name) for name in RecordingOptions.__struct_fields__}

    def _check(self, name: str, holds: bool, allowed: str) -> None:
        if not holds:
            raise ValueError(f"{name} is {getattr(self, name)!r}, it must be {allowed}")


class RecorderSettings(RecordingOptions, frozen=True, kw_only=True, omit_defaults=True):
    """Settings of one run. Each field has a variable: ``run_dir`` has ``RANKSCOPE_RUN_DIR``, and so on."""

    run_dir: str
    run_id: str
    name: str
    attempt: int = 0
    """Number of this start; torchrun's own restarts count on from it."""
    start_unix_ns: int
    scratch_dir: str | None = None
    """Folder on local memory that the launcher made and watches; ranks that cannot access it make their own."""
    plan_ahead_seconds: float = PLAN_AHEAD_SECONDS
    """Least time from choosing a window to its start; tests shorten it, because their ranks receive the announcement quickly."""
    plan_ahead_steps: int = PLAN_AHEAD_STEPS
    """Least number of steps from choosing a window to its start."""
    launcher: str | None = None

    def __post_init__(self) -> None:
        """Validate the numbers, also after decoding. Raises ``ValueError`` for a number out of range."""
        super().__post_init__()
        for name in ("attempt", "plan_ahead_steps"):
            self._check(name, getattr(self, name) >= 0, "0 or more")
        self._check("plan_ahead_seconds", 0 <= self.plan_ahead_seconds < math.inf, "0 or more")

    def with_overrides(self, environment: Mapping[str, str]) -> Self:
        """Return these settings with the values of the variables in ``environment`` for which there is no option.

        Raises ``ValueError`` that names the variable. Coordinates are parsed by the ranks, which report invalid ones.
        """
        settings = self
        for name in _WITHOUT_OPTION:
            variable = PREFIX + name.upper()
            text = environment.get(variable, "").strip()
            if not text or (name == "stacks_seconds" and self.stacks_seconds is None):
                continue  # nothing is set, or the option or argument has switched it off
            try:
                values = msgspec.structs.asdict(settings) | {name: text}
                settings = msgspec.convert(values, type(self), strict=False)
            except msgspec.ValidationError as error:
                raise ValueError(f"{variable}={text}: {error}") from error
        return settings

    def environment(self) -> dict[str, str]:
        """Return the environment variables that carry these settings."""
        values = msgspec.to_builtins(self, str_keys=True)
        return {PREFIX + key.upper(): "" if value is None else _text(value) for key, value in values.items()}

    def elastic_attempt(self, environment: Mapping[str, str]) -> int:
        """Return the first attempt that this process may belong to, the same on all ranks.

        Under an elastic agent this is the attempt of the first start; the helper finds that of this start (see ``starts``).
        """
        if "TORCHELASTIC_RUN_ID" in environment:
            return self.attempt
        restarts = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        return self.attempt + (int(restarts) if restarts.isdecimal() else 0)


def as_share(value: object) -> float:
    """Return ``"1%"``, ``"0.01"`` or ``0.01`` as a number. Raises ``ValueError`` unless it is above 0 and at most 1."""
    number, percent, text_after = str(value).strip().partition("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = math.nan
    if text_after or not 0 < share <= 1:
        raise ValueError(f"{value!r} is no share: say 1% or 0.01")
    return share


def default_spool_dir() -> str | None:
    """Return the folder that the node's exporter reads, if this process may write into it."""
    return str(SPOOL_DIR) if os.access(SPOOL_DIR, os.W_OK | os.X_OK) else None


def as_recorded(text: str) -> str:
    """Replace lone surrogates, which JSON cannot hold: command lines may contain file names that are not UTF-8."""
    return text.encode(errors="replace").decode()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def from_environment(environment: Mapping[str, str] = os.environ) -> RecorderSettings | None:
    """Return the settings of this process, or ``None`` if it was not launched with the recorder.

    Raises ``ValueError`` (``msgspec.ValidationError``) if a variable holds an invalid value.
    """
    if not environment.get(PREFIX + "RUN_DIR"):
        return None
    values = {
        field.name: environment[variable] or (None if NoneType in get_args(field.type) else "")
        for field in msgspec.structs.fields(RecorderSettings)
        if (variable := PREFIX + field.name.upper()) in environment
    }
    return msgspec.convert(values, RecorderSettings, strict=False)
