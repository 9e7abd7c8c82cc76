"""Interface to torch's profiler, whose useful parts are not public; only this module uses it.

A feature that this torch lacks is detected when a window starts and reported as ``KinetoUnavailable``, which never reaches
training.
"""

from __future__ import annotations

import json
import os
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import torch
from torch.autograd import profiler

from rankscope.profiler.rank.gpu.device import used_gpus

STEP_MARK: Final = "ProfilerStep#"


class KinetoUnavailable(Exception):  # noqa: N818  # a condition, not an error
    """Raised when no window can be recorded now; the message is the reason."""


_ours: weakref.WeakSet[Any] = weakref.WeakSet()
_others: weakref.WeakSet[Any] = weakref.WeakSet()


def note_begun(profile: object) -> bool:
    """Note that a torch profile is prepared or started. Return whether it is another one than the recorder's."""
    # Runs inside the script's own call, where ``profile`` may be of any class derived from torch's.
    with suppress(Exception):
        if profile in _ours:
            return False
        _others.add(profile)
    return True


def note_ended(profile: object) -> None:
    """Note that a torch profile has ended."""
    with suppress(Exception):
        _others.discard(profile)


def others_on() -> bool:
    """Return whether another profile than the recorder's is on or warms up."""
    return bool(_others)


def busy() -> bool:
    """Return whether any profiler is on, or another one than the recorder's is warming up."""
    enabled = getattr(torch.autograd, "_profiler_enabled", None)
    return others_on() or bool(enabled is not None and enabled())


class _LightProfile(profiler.profile):
    """torch's profile without unused data: without one event in six, and without the copy of the events for Python.

    It leaves out the wrappers that the autograd engine puts around the operators of a backward pass (``AddmmBackward0``); the
    operators in them are recorded. An older torch that cannot leave these out records them.
    """

    def __init__(self, device: str | None) -> None:
        # On older versions the class of torch.profiler takes seconds and imports 800 modules; this one takes a millisecond.
        super().__init__(use_kineto=True, use_device=device, experimental_config=_trace_only())

    def _start_trace(self) -> None:
        scopes, enable = _scopes(), getattr(profiler, "_enable_profiler", None)
        began = getattr(profiler, "_run_on_profiler_start", None)
        if scopes is None or enable is None or began is None:
            super()._start_trace()  # type: ignore[no-untyped-call]
            return
        self.entered = True
        began()
        enable(self.config(create_trace_id=False), self.kineto_activities, scopes)  # type: ignore[no-untyped-call]


def _trace_only() -> Any:
    """Return the configuration that keeps the trace without a second copy (torch 2.13 or newer), else ``None``."""
    try:
        return torch._C._profiler._ExperimentalConfig(trace_only=True)  # noqa: SLF001  # not public
    except (AttributeError, TypeError):
        return None


def _scopes() -> Any:
    """Return the scopes to record: operators and annotations. ``None`` if torch does not offer the choice."""
    kinds = getattr(getattr(torch._C, "_profiler", None), "RecordScope", None)  # noqa: SLF001  # not public
    try:
        return {kinds.FUNCTION, kinds.USER_SCOPE}  # type: ignore[union-attr]
    except AttributeError:
        return None


def _profile(device: str | None) -> Any:
    """Return a profile to enter; torch's plain one where this torch lacks the rest. Raises ``KinetoUnavailable``."""
    supported = getattr(torch.autograd, "_supported_activities", None)
    if device == "cuda" and supported is not None and "CUDA" not in {activity.name for activity in supported()}:
        # It would put events around every operator instead, which is slow, and shows no kernels.
        raise KinetoUnavailable(f"torch {torch.__version__} is built without the profiler of GPUs (CUPTI, ROCm's tracer)")
    try:
        if hasattr(profiler.profile, "_start_trace"):
            return _LightProfile(device)
        return profiler.profile(use_kineto=True, use_device=device)
    except (TypeError, AssertionError, RuntimeError) as error:
        raise KinetoUnavailable(f"torch {torch.__version__}: {error}") from error


def device_type() -> str | None:
    """Return the type of the device whose activities a window also records: "cuda" (also ROCm), "xpu", or ``None``."""
    # A device that the script has not used has no activities, and must not be initialised.
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "cuda"
    return "xpu" if torch.xpu.is_available() and torch.xpu.is_initialized() else None  # type: ignore[no-untyped-call]


def detaches() -> bool:
    """Return whether Kineto detaches CUPTI after each trace, at one of the next calls of CUDA, as the environment asks."""
    return os.environ.get("TEARDOWN_CUPTI") == "1"


class KinetoSession:
    """One profiled window: prepare, start, mark the steps, stop, export. All on the training thread."""

    def __init__(self) -> None:
        self.device = device_type()
        self._profile = _profile(self.device)
        _ours.add(self._profile)
        self.prepared = False
        """True from ``prepare`` until ``start``."""
        self._mark: Any = None

    def prepare(self) -> None:
        """Attach to the device without recording yet. Raises ``KinetoUnavailable``.

        Attaching takes long, and the kernels that are launched first are missing or slower. So a step lies between it and
        ``start``.
        """
        if busy():
            raise KinetoUnavailable("another profiler is on")
        try:
            self._profile._prepare_trace()  # noqa: SLF001  # ``torch.profiler`` calls it in its warm-up steps, too
        except Exception as error:
            raise KinetoUnavailable(f"the profiler was not prepared: {error}") from error
        self.prepared = True

    def drain(self) -> None:
        """Wait until the device has done all work launched so far, on all GPUs of this process. Raises ``RuntimeError``."""
        if self.device == "cuda":
            for gpu in used_gpus():
                torch.cuda.synchronize(gpu)
        elif self.device == "xpu":
            torch.xpu.synchronize()

    def start(self) -> None:
        """Begin recording. Raises ``KinetoUnavailable``."""
        if busy():
            raise KinetoUnavailable("another profiler is on")
        try:
            if self.prepared:
                self.prepared = False
                self._profile._start_trace()  # noqa: SLF001  # as above
            else:
                self._profile.__enter__()
        except Exception as error:
            raise KinetoUnavailable(f"the profiler did not start: {error}") from error
        _describe_job()

    def cancel(self) -> None:
        """Detach from the device after ``prepare``. Kineto has no other way than to begin and end a trace."""
        self.prepared = False
        with suppress(RuntimeError):  # the end of a trace waits for the device, which may have failed
            self._profile._start_trace()  # noqa: SLF001  # as above
            self._profile.__exit__(None, None, None)
        self._profile.kineto_results = None

    def begin_step(self, step: int) -> None:
        """Mark the start of a step in the trace, and the end of the previous one."""
        self.end_step()
        self._mark = profiler.record_function(f"{STEP_MARK}{step}")
        self._mark.__enter__()

    def end_step(self) -> None:
        """Mark the end of a step."""
        if self._mark is not None:
            mark, self._mark = self._mark, None
            mark.__exit__(None, None, None)

    def stop(self) -> None:
        """End recording. Waits until a device has finished its queued work, which would otherwise be missing."""
        self.end_step()
        self._profile.__exit__(None, None, None)

    def export(self, path: Path) -> None:
        """Write the trace as JSON, which is cheaper than reading the events from Python, and release it.

        Raises ``KinetoUnavailable`` if there is no trace.
        """
        results, self._profile.kineto_results = self._profile.kineto_results, None
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
