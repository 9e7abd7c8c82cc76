"""Reason why a process with torch recorded no step, which it leaves for the launcher when it ends."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from contextlib import suppress
from multiprocessing.util import Finalize
from typing import Final

from torch.optim.optimizer import Optimizer
from torch.utils.data import get_worker_info

from rankscope.profiler.rank.recorder import StepRecorder
from rankscope.profiler.scratch import note_unrecorded

_UNTRAINED: Final = "neither a backward pass nor an optimizer step was seen: inference, torch.func or torch.distributed.rpc"


def explain_at_end(recorder: StepRecorder) -> None:
    """When this process ends without a recorded step, note the reason in the launcher's folder."""
    parent = os.getpid()

    def note() -> None:
        # The look at all objects would delay the end of each worker that loads data.
        is_rank = os.getpid() == parent and get_worker_info() is None
        if recorder.settings.scratch_dir and is_rank and not recorder.has_ended_step:
            with suppress(Exception):
                reason = _reason(recorder)
                note_unrecorded(recorder.settings.scratch_dir, reason or _UNTRAINED, trained=reason is not None)

    atexit.register(note)
    # Children of multiprocessing do not call what ``atexit`` has.
    Finalize(None, note, exitpriority=1)


def _reason(recorder: StepRecorder) -> str | None:
    """Return the reason why training was not recorded; ``None``: there was no sign of training."""
    backward = recorder.saw_backward
    # Not isinstance, which could run code of the objects themselves.
    optimizers = sorted({type(candidate).__name__ for candidate in gc.get_objects() if issubclass(type(candidate), Optimizer)})
    if optimizers:
        compiled = "a compiled function (torch.compile) steps it" if "torch._dynamo" in sys.modules else "no step of it was seen"
        return f"there is an optimizer ({', '.join(optimizers)}), but {compiled}"
    if backward:
        return "backward passes ran, but no torch.optim.Optimizer stepped: an optimizer of another class updates the parameters"
    return None
