"""The one place that touches torch's profiler, whose useful parts are not public.

What this torch lacks is found when a window starts and reported as ``KinetoUnavailable``; training never sees it.
"""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any, Final

import torch
from torch.autograd import profiler

STEP_MARK: Final = "ProfilerStep#"


class KinetoUnavailable(Exception):  # noqa: N818  # it is a circumstance, not a fault
    """No window can be recorded now; the message says why."""


_ours: weakref.WeakSet[Any] = weakref.WeakSet()
_others: weakref.WeakSet[Any] = weakref.WeakSet()


def note_begun(profile: object) -> bool:
    """Somebody prepares or starts a torch profile. Returns whether it is not one of ours."""
    if profile in _ours:
        return False
    _others.add(profile)
    return True


def note_ended(profile: object) -> None:
    """A torch profile has ended."""
    _others.discard(profile)


def busy() -> bool:
    """Whether somebody's profiler is on, or warming up."""
    enabled = getattr(torch.autograd, "_profiler_enabled", None)
    return bool(_others) or bool(enabled is not None and enabled())


class KinetoSession:
    """One window: start, mark the steps, stop, export. All on the training thread."""

    def __init__(self) -> None:
        device = "cuda" if torch.cuda.is_available() and torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
        try:
            # torch.profiler's own class costs seconds and 800 modules on older versions; this one a millisecond.
            self._profile: Any = profiler.profile(use_kineto=True, use_device=device)
        except (TypeError, AssertionError, RuntimeError) as error:
            raise KinetoUnavailable(f"torch {torch.__version__}: {error}") from error
        _ours.add(self._profile)
        self._mark: Any = None

    def start(self) -> None:
        """Begin recording. Raises ``KinetoUnavailable``."""
        if busy():
            raise KinetoUnavailable("another profiler is on")
        try:
            self._profile.__enter__()
        except Exception as error:
            raise KinetoUnavailable(f"the profiler did not start: {error}") from error
        _describe_job()

    def begin_step(self, step: int) -> None:
        """Mark the start of a step in the trace, and the end of the one before."""
        self.end_step()
        self._mark = profiler.record_function(f"{STEP_MARK}{step}")
        self._mark.__enter__()

    def end_step(self) -> None:
        """Mark the end of a step."""
        if self._mark is not None:
            mark, self._mark = self._mark, None
            mark.__exit__(None, None, None)

    def stop(self) -> None:
        """End recording."""
        self.end_step()
        self._profile.__exit__(None, None, None)

    def export(self, path: Path) -> None:
        """Write the trace as JSON; about 0.1 s for 25 MB, much less than reading the events from Python."""
        results = self._profile.kineto_results
        if results is None or not hasattr(results, "save"):
            raise KinetoUnavailable(f"torch {torch.__version__} has no trace to export")
        results.save(str(path))


def _describe_job() -> None:
    add = getattr(torch.autograd, "_add_metadata_json", None)
    distributed = torch.distributed
    if add is None or not distributed.is_available() or not distributed.is_initialized():
        return
    info: dict[str, Any] = {
        "backend": str(distributed.get_backend()),
        "rank": distributed.get_rank(),
        "world_size": distributed.get_world_size(),
    }
    groups = getattr(distributed.distributed_c10d, "_get_all_pg_configs", None)
    if groups is not None:
        info["pg_config"] = groups()
        info["pg_count"] = len(info["pg_config"])
    add("distributedInfo", json.dumps(info, default=str))
