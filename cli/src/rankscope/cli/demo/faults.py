"""The faults a demonstration can plant, and what the verdict must say about each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import click

from rankscope.analysis.result.analysis import Verdict
from rankscope.analysis.result.cause import Cause
from rankscope.runs.records import Phase

WORLD_SIZE: Final = 4


@dataclass(frozen=True, slots=True)
class Expectation:
    """The right verdict on a fault. ``phase`` is ``None`` where the fault has no phase of its own."""

    cause: Cause
    phase: Phase | None


EXPECTATIONS: Final[dict[str, Expectation]] = {
    "input": Expectation("input", "data"),
    "host": Expectation("host", "forward"),
    "backward": Expectation("host", "backward"),
    "imbalance": Expectation("imbalance", None),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A planted fault: ``kind`` and the ``rank`` that has it; rank is ``None`` for ``none``."""

    kind: str
    rank: int | None

    def __str__(self) -> str:
        return self.kind if self.rank is None else f"{self.kind}:{self.rank}"

    def judge(self, verdict: Verdict) -> tuple[bool, str]:
        """Return whether the verdict is right about the fault, and a sentence for people."""
        if self.rank is None:
            calm = verdict.kind not in ("straggler", "hang", "insufficient_data")
            # On a busy machine with fewer cores than ranks, the ranks really wait for a CPU in turn.
            busy = verdict.kind == "straggler" and verdict.rank is None and verdict.explained_by == "cpu_contention"
            sentence = f"planted nothing; verdict {verdict.kind}" + _named(verdict)
            return calm or busy, sentence + (", no rank: all of them wait for a CPU in turn" if busy else "")
        expected = EXPECTATIONS[self.kind]
        sentence = f"planted {self}; verdict {verdict.kind}{_named(verdict)}"
        right = (
            verdict.kind == "straggler"
            and verdict.rank == self.rank
            and verdict.cause == expected.cause
            and expected.phase in (None, verdict.phase)
        )
        return right, sentence


def _named(verdict: Verdict) -> str:
    if verdict.rank is None:
        return ""
    return f", rank {verdict.rank}, cause {verdict.cause}" + (f", phase {verdict.phase}" if verdict.phase else "")


class FaultType(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.4 on
    """``KIND:RANK`` or ``none``."""

    name = "fault"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Fault:
        """Parse, or fail with what there is."""
        if isinstance(value, Fault):
            return value
        kind, _, rank = str(value).partition(":")
        if str(value) == "none":
            return Fault("none", None)
        if kind in EXPECTATIONS and rank.isdecimal() and int(rank) < WORLD_SIZE:
            return Fault(kind, int(rank))
        kinds = ", ".join(f"{kind}:R" for kind in EXPECTATIONS)
        return self.fail(f"{value!r} is no fault; choose none or one of {kinds}, with R from 0 to {WORLD_SIZE - 1}", param, ctx)
