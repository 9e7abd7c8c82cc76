"""The table of Xid errors, read from ``xids.toml``: meaning, cause and usual action of each code."""

from __future__ import annotations

import datetime as dt
from importlib.resources import files
from typing import Final, Literal

import msgspec

Action = Literal[
    "none",
    "restart_app",
    "restart_vm",
    "reset_gpu",
    "reboot",
    "check_nvlink",
    "check_power",
    "update_software",
    "contact_vendor",
    "see_recovery_action",
]


class Xid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One Xid code; ``name`` is the driver's term in lower case.

    ``actionable``: an operator has to act on the GPU or the node. ``critical``: the GPU cannot be trusted until then. ``graded``:
    the line of the kernel log has a severity, fatal or not, which decides what to do.
    """

    code: int
    name: str
    meaning: str
    cause: Literal["hardware", "driver", "application"]
    actionable: bool = False
    action: Action = "none"
    critical: bool = False
    graded: bool = False
    source: Literal["catalog", "driver"] = "catalog"


class XidSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Source of the meanings of codes, and the date it was read."""

    title: str
    url: str
    read_on: dt.date


class _XidFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: dict[str, XidSource]
    xid: tuple[Xid, ...]


_FILE: Final = msgspec.toml.decode((files("rankscope.exporter") / "xids.toml").read_bytes(), type=_XidFile)

SOURCES: Final = _FILE.source

SOURCE: Final = SOURCES["catalog"]

XIDS: Final[dict[int, Xid]] = {xid.code: xid for xid in _FILE.xid}

ACTIONABLE: Final[tuple[int, ...]] = tuple(sorted(xid.code for xid in _FILE.xid if xid.actionable))

CRITICAL: Final[tuple[int, ...]] = tuple(code for code in ACTIONABLE if XIDS[code].critical)
"""Critical codes; every GPU has a series of each, starting before the first occurrence."""

GRADED: Final = frozenset(xid.code for xid in _FILE.xid if xid.graded)

FALLEN_OFF_THE_BUS: Final = 79
"""Xid of a GPU that no longer answers over PCIe; the driver does not always report it as an Xid."""
