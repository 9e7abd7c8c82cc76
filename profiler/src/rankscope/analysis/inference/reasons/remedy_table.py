"""What to do about slow ranks, by reason and by cause, from the tables of both."""

from __future__ import annotations

from typing import Final

from rankscope.analysis.causes import CAUSES, COMPARE_HOSTS
from rankscope.analysis.inference.reasons.physical import PHYSICAL
from rankscope.analysis.inference.reasons.slow_kernels import KERNEL_REMEDY
from rankscope.analysis.remedies import CAPTURE, OUT_OF_SERVICE, READINGS, RECORD_WINDOWS, SERVED, SHARED, WITHOUT, Remedy, remedy
from rankscope.analysis.result.cause import Cause

_REMEDIES_OF_UNSEEN: Final = (
    remedy("see_device_of_host", CAPTURE, RECORD_WINDOWS, SERVED, SHARED, OUT_OF_SERVICE, whole_host=True),
    remedy("see_device", CAPTURE, RECORD_WINDOWS, READINGS % "CLOCK,PERFORMANCE,TEMPERATURE,POWER"),
)

OF_REASONS: Final[dict[str, tuple[Remedy, ...]]] = {
    # The host of a device waits for it, so records of the host do not tell which of the two is late.
    "device_unseen": _REMEDIES_OF_UNSEEN,
    **{row.reason: row.remedies for row in PHYSICAL},
    **{row.explained_by: row.remedies for row in CAUSES if row.explained_by is not None},
    **dict.fromkeys(("few_kernels", "other_kernels"), (KERNEL_REMEDY,)),
    "processor": (
        COMPARE_HOSTS,
        remedy(
            "compare_processors",
            "Compare the processor of {ranks} with the others': model and frequency (lscpu), cores that it may use "
            "(taskset -p), threads (OMP_NUM_THREADS), and what else runs there (top)",
            "Look at {stalls_at} in the code: does {ranks} do there what the others do?",
            WITHOUT % "the host",
        ),
    ),
}
"""Remedies by ``explained_by`` of a verdict, or by another reason of ``verdict/advice.py``."""

OF_CAUSES: Final[dict[Cause, tuple[Remedy, ...]]] = {
    row.cause: row.remedies for row in CAUSES if row.explained_by is None and row.remedies
}

FIGURES: Final = {reason: remedies[0].figure or reason for reason, remedies in OF_REASONS.items()}
"""Names of the time lost for each reason."""
