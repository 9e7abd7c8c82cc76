"""Verdict on a job of several ranks in whose traces no kernel is known to be communication.

Such a job is not limited by its compute: ranks wait in kernels whose name is unknown, or the traces lack the communication.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final

import msgspec

from rankscope.analysis.evidence.unknown_kernels import RankKernels, pattern_of, unknown_kernels
from rankscope.analysis.result.analysis import UnknownKernel, Verdict
from rankscope.analysis.trace.symbols import function_of, last_part
from rankscope.analysis.verdict.builders import insufficient
from rankscope.base.text import duration, shortened

NO_COMMUNICATION: Final = (
    "no kernel in the traces is known to be communication: either its name is unknown, or the traces have none"
)

_NAME_WIDTH: Final = 60


def without_communication(ranks: Mapping[int, RankKernels], traces: str) -> Verdict:
    """Return the verdict, with the kernels that may be communication and the command that names the likeliest one.

    ``traces``: the paths of the traces, quoted for a shell.
    """
    kernels = unknown_kernels(ranks)
    pattern = shlex.quote(pattern_of(kernels[0], ranks)) if kernels else "REGEX"
    may_be = f". It may be {'; '.join(map(_described, kernels))}" if kernels else ""
    verdict = insufficient(
        NO_COMMUNICATION + may_be,
        lack="no_communication",
        command=f"rankscope analyze {traces} --communication-pattern {pattern}",
    )
    return msgspec.structs.replace(verdict, unknown_kernels=kernels)


def _described(kernel: UnknownKernel) -> str:
    name = shortened(last_part(function_of(kernel.name)) or kernel.name, _NAME_WIDTH)
    where = "on a stream of its own, " if kernel.own_stream else ""
    least, most = duration(kernel.least_us), duration(kernel.most_us)
    times = most if least == most else f"{least} to {most} by rank"
    return f"{name} ({where}{kernel.share:.0%} of the window, {times})"
