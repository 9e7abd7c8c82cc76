"""Policy of each Xid: the alert that it raises, and whether the node is drained (``xid_policy.toml``)."""

from __future__ import annotations

from importlib.resources import files
from typing import Final, Literal

import msgspec

Severity = Literal["", "fatal", "non_fatal"]


class XidPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Policy of some Xid ``codes``.

    They raise ``alert`` and may raise those in ``also``; ``drain``: the node is taken out of service; ``why``: the reason.
    ``severity``: only errors of this severity, as the kernel log has it for NVLink errors; empty: errors of unknown severity, and
    of codes without one.
    """

    alert: str
    also: tuple[str, ...] = ()
    drain: bool
    codes: tuple[int, ...]
    severity: Severity = ""
    why: str


class _PolicyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    policy: tuple[XidPolicy, ...]


POLICIES: Final = msgspec.toml.decode(
    (files("rankscope.alerts") / "rules" / "xid_policy.toml").read_bytes(), type=_PolicyFile
).policy

OTHERS: Final = XidPolicy(alert="GpuXidRepeated", drain=False, codes=(), why="A single one needs no action; repeated ones do.")
"""Policy of every code that no other policy names."""


def policy_of(code: int, severity: Severity = "") -> XidPolicy:
    """Return the policy of a code, for codes with a severity that of errors of this severity (empty: unknown)."""
    return next((policy for policy in POLICIES if code in policy.codes and policy.severity == severity), OTHERS)
