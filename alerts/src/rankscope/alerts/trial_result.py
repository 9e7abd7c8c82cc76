"""What came of a test alert. Needs no extra."""

from __future__ import annotations

from typing import Literal

import msgspec


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """What a target answered. ``answer`` is in words; ``seconds`` is how long that took."""

    target: str
    status: Literal["firing", "resolved"]
    delivered: bool
    answer: str
    seconds: float


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What ``test-webhook --format json`` prints."""

    schema: Literal["rankscope.test-webhook/1"] = "rankscope.test-webhook/1"
    ok: bool
    results: list[Tried]
