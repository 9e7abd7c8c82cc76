"""Where the exporter keeps its things when nobody says where."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def default_socket(environ: Mapping[str, str] = os.environ) -> Path:
    """The control socket: in the unit's folder under systemd, ``/run/rankscope/exporter`` for root, else the user's."""
    folder = environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    if not folder:
        folder = (
            "/run/rankscope/exporter" if os.getuid() == 0 else f"{environ.get('XDG_RUNTIME_DIR') or _home(environ)}/rankscope"
        )
    return Path(folder) / "control.sock"


def default_state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """What outlives a restart: systemd's folder for the unit, ``/var/lib/rankscope/exporter`` for root, else the user's."""
    folder = environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if folder:
        return Path(folder)
    if os.getuid() == 0:
        return Path("/var/lib/rankscope/exporter")
    return Path(environ.get("XDG_STATE_HOME") or f"{_home(environ)}/.local/state") / "rankscope" / "exporter"


def _home(environ: Mapping[str, str]) -> str:
    return environ.get("HOME") or f"/nonexistent/{os.getuid()}"
