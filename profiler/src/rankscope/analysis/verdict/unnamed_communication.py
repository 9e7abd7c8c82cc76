"""Verdict on a job of several ranks in whose traces no kernel is known to be communication, or not those in which ranks wait.

Such a job is not limited by its compute: ranks wait in kernels whose name is unknown, or the traces lack the communication.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from rankscope.analysis.evidence.kernels.unknown_kernels import RankKernels, kernels_with_waits, pattern_of, unknown_kernels
from rankscope.analysis.result.analysis import UnknownKernel, Verdict
from rankscope.analysis.trace.classify import function_of, last_part
from rankscope.analysis.verdict.builders import MissingEvidence, Setting, insufficient_verdict
from rankscope.base.text import format_duration, shortened

NO_COMMUNICATION: Final = (
    "no kernel in the traces is known to be communication: either its name is unknown, or the traces have none"
)

WAITS: Final = "ranks seem to wait for each other in a kernel that is not known to be communication"

_NAME_WIDTH: Final = 60


def without_communication(ranks: Mapping[int, RankKernels], traces: str, setting: Setting) -> Verdict:
    """Return the verdict, with the kernels that may be communication and the command that names the likeliest one.

    ``traces``: the paths of the traces, quoted for a shell.
    """
    return _unnamed(NO_COMMUNICATION, unknown_kernels(ranks), ranks, traces, setting)


def with_unnamed_waits(ranks: Mapping[int, RankKernels], traces: str, setting: Setting) -> Verdict | None:
    """Return the verdict where ranks seem to wait in kernels of unknown names, beside communication that is known."""
    kernels = kernels_with_waits(ranks)
    return _unnamed(WAITS, kernels, ranks, traces, setting) if kernels else None


def _unnamed(
    reason: str, kernels: Sequence[UnknownKernel], ranks: Mapping[int, RankKernels], traces: str, setting: Setting
) -> Verdict:
    pattern = shlex.quote(pattern_of(kernels[0], ranks)) if kernels else "REGEX"
    may_be = f". It may be {'; '.join(map(_described, kernels))}" if kernels else ""
    verdict = insufficient_verdict(
        MissingEvidence(reason + may_be, "no_communication"),
        setting,
        command=f"rankscope analyze {traces} --communication-pattern {pattern}",
    )
    return msgspec.structs.replace(verdict, unknown_kernels=list(kernels))


def _described(kernel: UnknownKernel) -> str:
    name = shortened(last_part(function_of(kernel.name)) or kernel.name, _NAME_WIDTH)
    where = "on a stream of its own, " if kernel.own_stream else ""
    least, most = format_duration(kernel.least_us), format_duration(kernel.most_us)
    times = most if least == most else f"{least} to {most} by rank"
    return f"{name} ({where}{kernel.share:.0%} of the window, {times})"
