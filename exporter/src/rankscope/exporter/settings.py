"""Settings of the exporter, merged from flags, environment, file and defaults, and the default paths."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, Literal

from rankscope.base.logs import LogFormat, LogLevel

Address = tuple[str, int]

DEFAULT_PORT: Final = 9838
DCGM_PATH: Final = "/dcgm/metrics"

RELOADED: Final = frozenset({"log_level", "log_format", "web_config"})
"""Settings that a SIGHUP applies; all others need a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterSettings:
    """Settings of one daemon. A folder or socket that is None has a default path.

    Attributes:
        collectors: names of the catalogue's collectors that run.
        collectors_off: collectors that the user disabled by name; no other setting enables them.
        simulate: simulated GPUs, such as ``4`` or ``8xH100``; None for the real ones.
        host: ``host`` label of ``gpu_info``.
        restart_on_stale_driver: exit with status 5 if the loaded driver no longer matches its library and no GPU answers.
    """

    listen: tuple[Address, ...] = (("::", DEFAULT_PORT),)
    telemetry_path: str = "/metrics"
    web_config: Path | None = None

    collectors: frozenset[str]
    collectors_off: frozenset[str] = frozenset()
    interval_s: float = 1.0
    call_timeout_s: float = 5.0
    expected_gpus: int | None = None
    state_dir: Path | None = None
    restart_on_stale_driver: bool = True
    xid_kernel_log: bool = True
    simulate: str | None = None
    host: str

    spool: Path | None = None
    spool_stale_s: float = 300.0
    spool_forget_s: float = 86400.0

    jobs_users: bool = True
    jobs_pods: bool = True
    jobs_slurm_dir: Path | None = None
    jobs_podresources_socket: Path | None = None

    compat_dcgm: bool = False
    compat_counters: Path | None = None
    compat_hostname: Literal["Hostname", "hostname"] = "Hostname"
    compat_listen: tuple[Address, ...] = ()

    otlp: bool = False

    control_socket: Path | None = None

    log_level: LogLevel = "info"
    log_format: LogFormat = "logfmt"

    def changes(self, other: ExporterSettings) -> set[str]:
        """Return the names of the settings that differ in ``other``."""
        return {field.name for field in fields(self) if getattr(self, field.name) != getattr(other, field.name)}


def default_socket(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the control socket's path: in systemd's folder of the unit, else ``/run/rankscope/exporter`` (root) or the user's.

    The user's folder is in ``XDG_RUNTIME_DIR``, else in the home directory.
    """
    folder = environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    if not folder:
        folder = (
            "/run/rankscope/exporter" if os.getuid() == 0 else f"{environ.get('XDG_RUNTIME_DIR') or _home(environ)}/rankscope"
        )
    return Path(folder) / "control.sock"


def default_state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the state folder: systemd's of the unit, else ``/var/lib/rankscope/exporter`` (root) or the user's."""
    folder = environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if folder:
        return Path(folder)
    if os.getuid() == 0:
        return Path("/var/lib/rankscope/exporter")
    return Path(environ.get("XDG_STATE_HOME") or f"{_home(environ)}/.local/state") / "rankscope" / "exporter"


def _home(environ: Mapping[str, str]) -> str:
    return environ.get("HOME") or f"/nonexistent/{os.getuid()}"
