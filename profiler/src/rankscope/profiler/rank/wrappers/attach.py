"""Attachment to an unmodified script, through wrappers around the few functions that every training loop calls.

There are no module hooks: they break ``torch.compile(fullgraph=True)`` and add cost to every call. While torch is tracing, every
wrapper behaves exactly like the function it wraps.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from functools import wraps
from threading import get_ident
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.autograd import profiler
from torch.compiler import is_dynamo_compiling
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from rankscope.profiler.rank import layout
from rankscope.profiler.rank.gpu import flight_dump, graph_capture, memory_snapshot
from rankscope.profiler.rank.gpu.kineto import note_begun, note_ended
from rankscope.profiler.rank.guard import print_not_recorded
from rankscope.profiler.rank.identity import note_process_group
from rankscope.profiler.rank.recorder import StepRecorder
from rankscope.profiler.rank.unrecorded import explain_at_end
from rankscope.profiler.rank.wrappers import checkpoints, model_inputs, waits, worker_count
from rankscope.profiler.rank.wrappers.hidden_helpers import hide_helpers
from rankscope.profiler.rank.wrappers.process_end import watch_immediate_exits
from rankscope.profiler.settings import from_environment

_OLDEST_TORCH = (2, 6)

_recorder: StepRecorder | None = None
_launched: StepRecorder | None = None
_patched = False


def current() -> StepRecorder | None:
    """Return the recorder of this process, if there is one."""
    return _recorder


def take_launched() -> StepRecorder | None:
    """Return the recorder that ``install`` made, only to the first caller and only before its first step is over."""
    global _launched  # see ``use``
    launched, _launched = _launched, None
    return None if launched is None or launched.off or launched.session is not None else launched


def install() -> None:
    """Install the recorder after the import of torch, in a process that was launched with it. Never raises."""
    global _launched  # noqa: PLW0603  # see ``use``
    try:
        settings = from_environment(os.environ)
        if settings is not None:
            recorder = StepRecorder(settings)
            use(recorder)
            _launched = recorder
            explain_at_end(recorder)
    except Exception as error:  # noqa: BLE001  # no error may stop training
        print_not_recorded(str(error) or type(error).__name__)


def use(recorder: StepRecorder) -> None:
    """Make ``recorder`` the one that the wrappers report to, and install them.

    Raises ``RuntimeError`` if torch is too old.
    """
    global _recorder, _patched  # noqa: PLW0603  # there is one torch in a process
    version = tuple(int(part) for part in str(torch.__version__).split("+")[0].split(".")[:2])
    if version < _OLDEST_TORCH:
        raise RuntimeError(f"torch {torch.__version__} is older than 2.6")
    _recorder = recorder
    model_inputs.report_to(recorder)
    flight_dump.prepare(recorder.settings.scratch_dir)
    if not _patched:
        _patched = True
        _wrap_everything()
        if recorder.settings.memory_snapshot:
            memory_snapshot.record_memory(recorder.settings.run_dir)
        os.register_at_fork(after_in_child=_forked)
        watch_immediate_exits()
        hide_helpers()


def adopt_existing(recorder: StepRecorder) -> None:
    """Find the DDP models and device meshes made before the wrappers were installed. Takes some tens of milliseconds."""
    for candidate in gc.get_objects():
        # Not isinstance, which could run code of the objects themselves.
        if issubclass(type(candidate), DistributedDataParallel):
            recorder.adopt(candidate)
        layout.adopt(candidate)


def _forked() -> None:
    if _recorder is not None:
        _recorder.forked()


def _active_recorder() -> StepRecorder | None:
    if is_dynamo_compiling() or _recorder is None or _recorder.off:
        return None
    return _recorder


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = getattr(owner, name, None)
    if original is not None:
        setattr(owner, name, wraps(original)(make(original)))


def _wrap_everything() -> None:
    _replace(_BaseDataLoaderIter, "__next__", _data)
    # Tensor.backward looks this up at every call, so one wrapper covers both.
    _replace(torch.autograd, "backward", _backward)
    _replace(nn.Module, "eval", _evaluates)
    _replace(nn.Module, "train", _trains)
    _replace(GradScaler, "step", _scaler)
    _replace(profiler.profile, "_prepare_trace", _foreign_profiler)
    _replace(profiler.profile, "_start_trace", _foreign_profiler)
    _replace(profiler.profile, "__exit__", _noting_end(note_ended))
    # These cannot be active during a window either.
    for kind in (
        profiler.emit_nvtx,
        profiler.emit_itt,
        getattr(sys.modules.get("torch.autograd.profiler_legacy"), "profile", None),
    ):
        _replace(kind, "__enter__", _foreign_profiler)
        _replace(kind, "__exit__", _noting_end(note_ended))
    _replace(torch.cuda.CUDAGraph, "capture_begin", _capture_begins)
    _replace(torch.cuda.CUDAGraph, "capture_end", _noting_end(graph_capture.note_ended))
    _replace(DistributedDataParallel, "__init__", _wrapped_model)
    if dist.is_available():
        _replace(dist, "init_process_group", _process_group)
        dist.distributed_c10d.init_process_group = dist.init_process_group
    waits.watch(_active_recorder)
    model_inputs.watch()
    layout.watch_meshes()
    worker_count.watch()
    checkpoints.watch(_active_recorder)
    register_optimizer_step_pre_hook(_before_optimizer)
    register_optimizer_step_post_hook(_after_optimizer)


def _data(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def following(self: Any) -> Any:
        recorder = None if is_dynamo_compiling() else _recorder
        if recorder is None or recorder.off or not recorder.enter_data(self):
            return original(self)
        batch = None
        try:
            batch = original(self)
        finally:
            recorder.leave_data(batch)
        return batch

    return following


def _backward(original: Callable[..., None]) -> Callable[..., None]:
    def backward(*args: Any, **kwargs: Any) -> None:
        recorder = None if is_dynamo_compiling() else _recorder
        if recorder is None or recorder.off:
            return original(*args, **kwargs)
        roots = args[0] if args else kwargs.get("tensors")
        passed = recorder.enter_backward(roots)
        # Also for nested passes: with reentrant checkpoints a nested pass may be the one that waits.
        tail = recorder.enter_pass(roots) if not passed and recorder.gradients.present else None
        try:
            return original(*args, **kwargs)
        finally:
            if passed:
                recorder.leave_backward(passed)
            elif tail is not None:
                recorder.leave_pass(tail)

    return backward


def _evaluates(original: Callable[..., Any]) -> Callable[..., Any]:
    def evaluate(self: Any) -> Any:
        recorder = _active_recorder()
        if recorder is not None:
            recorder.model_evaluates()
        return original(self)

    return evaluate


def _trains(original: Callable[..., Any]) -> Callable[..., Any]:
    def train(self: Any, mode: bool = True) -> Any:
        # A model calls this for each submodule, so a check that is false for all but the first call comes before any other work.
        # ``eval`` of some models (all of transformers 5) calls this too. A compiled caller must not depend on ``may_evaluate``:
        # a change would recompile it.
        if not is_dynamo_compiling() and _recorder is not None and _recorder.may_evaluate is mode:
            recorder = _active_recorder()
            if recorder is not None:
                (recorder.model_trains if mode else recorder.model_evaluates)()
        return original(self, mode)

    return train


def _scaler(original: Callable[..., Any]) -> Callable[..., Any]:
    def step(self: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        recorder = _active_recorder()
        if recorder is None:
            return original(self, optimizer, *args, **kwargs)
        steps_before = recorder.before_scaler()
        result = original(self, optimizer, *args, **kwargs)
        recorder.after_scaler(optimizer, steps_before)
        return result

    return step


def _foreign_profiler(original: Callable[..., Any]) -> Callable[..., Any]:
    def begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = _active_recorder()
        if note_begun(self) and recorder is not None:
            recorder.yield_to_script()
        return original(self, *args, **kwargs)

    return begin


def _capture_begins(original: Callable[..., None]) -> Callable[..., None]:
    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        graph_capture.note_begun(self)

    return begin


def _noting_end(note: Callable[[object], None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a maker of wrappers that call ``note`` with the object when its method has returned or raised."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def end(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(self, *args, **kwargs)
            finally:
                note(self)

        return end

    return make


def _process_group(original: Callable[..., None]) -> Callable[..., None]:
    def init(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        note_process_group()
        if _recorder is not None:
            _recorder.change_place()

    return init


def _wrapped_model(original: Callable[..., None]) -> Callable[..., None]:
    def init(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        recorder = _active_recorder()
        if recorder is not None:
            recorder.adopt(self)

    return init


def _before_optimizer(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    recorder = None if is_dynamo_compiling() else _recorder
    if recorder is not None and not recorder.off:
        if get_ident() != recorder.thread:
            recorder.claim()
        if recorder.session is None:
            model_inputs.watch()  # the script has imported what it trains with
        recorder.before_optimizer(optimizer)


def _after_optimizer(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    recorder = None if is_dynamo_compiling() else _recorder
    if recorder is not None and not recorder.off:
        recorder.after_optimizer(optimizer)
