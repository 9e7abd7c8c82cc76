"""Tables that rules rest on: the policy per Xid (``xid_policy.toml``), and metrics of other exporters (``external.toml``)."""

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


POLICIES: Final = msgspec.toml.decode(
    (files("rankscope.alerts") / "rules" / "xid_policy.toml").read_bytes(), type=_PolicyFile
).policy

OTHERS: Final = Policy(
    alert="GpuXidRepeated", drain=False, codes=(), why="A single one needs nobody; one that comes again and again does."
)
"""For every code that no policy names."""


def policy_of(code: int) -> Policy:
    """What is done about a code."""
    return next((policy for policy in POLICIES if code in policy.codes), OTHERS)


class ExternalMetric(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A series of somebody else's: its name, who publishes it, and those of its ``labels`` that are relied on."""

    name: str
    source: str = msgspec.field(name="from")
    labels: tuple[str, ...]


class _ExternalFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    metric: tuple[ExternalMetric, ...]


EXTERNAL: Final = msgspec.toml.decode(
    (files("rankscope.alerts") / "rules" / "external.toml").read_bytes(), type=_ExternalFile
).metric
