"""What we do about an Xid: policy, read from ``rules/xid_policy.toml``. What a code means is the exporter's data."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

import msgspec


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For these ``codes``: which ``alert`` tells of one, which ``also`` may, whether the node is drained, and why."""

    alert: str
    also: tuple[str, ...] = ()
    drain: bool
    codes: tuple[int, ...]
    why: str


class _PolicyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    policy: tuple[Policy, ...]


POLICIES: Final = msgspec.toml.decode((files("rankscope.alerts") / "rules" / "xid_policy.toml").read_bytes(), type=_PolicyFile).policy

OTHERS: Final = Policy(
    alert="GpuXidRepeated", drain=False, codes=(), why="A single one needs nobody; one that comes again and again does."
)
"""For every code that no policy names."""


def policy_of(code: int) -> Policy:
    """What is done about a code."""
    return next((policy for policy in POLICIES if code in policy.codes), OTHERS)
