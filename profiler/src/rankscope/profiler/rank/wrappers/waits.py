"""Waits of the training thread for other ranks, on the host.

All waits from Python pass through few functions: ``Work.wait`` (collectives, point-to-point, object collectives, barriers, FSDP,
pipelines, coalesced and batched works), the operator ``wait_tensor`` (functional collectives, DTensor, also from compiled
graphs), futures (communication hooks of DDP) and the monitored barrier. Wrapping them imports nothing.

Waits inside C++ are not observed. DDP's own wait at the end of backward is measured in ``ddp``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final, Protocol

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel


class WaitListener(Protocol):
    """Receiver of the waits of the thread."""

    def enter_wait(self) -> int:
        """Begin a wait; return its start, or 0 if the thread is waiting already."""

    def leave_wait(self, started: int) -> None:
        """End the wait that began at ``started``."""


WaitListenerSource = Callable[[], WaitListener | None]

_WITHOUT_DATA: Final = frozenset(("FakeTensor", "FunctionalTensor"))
"""Names of the types that operators receive while a graph is traced, which up to torch 2.11 does not always count as compiling.
Names, so that nothing is imported for them."""


class TimedOperator:
    """Timed replacement of the builtin inside an operator of ``torch.ops``.

    Compiled graphs call the operator itself, so a function around it would miss them; tracing only looks at the operator. Torch
    hashes operators by their builtin, so the hash must stay the same.
    """

    def __init__(self, builtin: Any, find_listener: WaitListenerSource) -> None:
        self._builtin = builtin
        self._find_listener = find_listener

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the builtin, timed unless it runs on data-less tensors of a trace, or inside another wait."""
        listener = None if args and type(args[0]).__name__ in _WITHOUT_DATA else self._find_listener()
        started = 0 if listener is None else listener.enter_wait()
        if listener is None or not started:
            return self._builtin(*args, **kwargs)
        try:
            return self._builtin(*args, **kwargs)
        finally:
            listener.leave_wait(started)

    def __hash__(self) -> int:
        return hash(self._builtin)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._builtin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builtin, name)


def timed_method(original: Callable[..., Any], find_listener: WaitListenerSource) -> Callable[..., Any]:
    """Return the method ``original`` timed as a wait. A wait inside another is part of the outer one.

    The wrapper has a parameter ``self``: pybind11 looks for it in the calling frame, to distinguish ``super().wait()`` in a
    Python subclass from a call that must go to the subclass.
    """

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        listener = find_listener()
        started = 0 if listener is None else listener.enter_wait()
        if listener is None or not started:
            return original(self, *args, **kwargs)
        try:
            return original(self, *args, **kwargs)
        finally:
            listener.leave_wait(started)

    return wait


def watch(find_listener: WaitListenerSource) -> None:
    """Install the wrappers, once per process. ``find_listener`` is called at every wait, and returns ``None`` while tracing."""

    def replace(owner: Any, name: str) -> None:
        original = getattr(owner, name, None)
        if original is not None:
            setattr(owner, name, wraps(original)(timed_method(original, find_listener)))

    # The broadcast of buffers before forward waits for rank 0.
    replace(DistributedDataParallel, "_sync_buffers")
    if not dist.is_available():
        return
    replace(dist.Work, "wait")
    replace(dist.ProcessGroup, "monitored_barrier")
    replace(torch._C.Future, "wait")  # noqa: SLF001  # what ``Work.get_future`` returns; the public class derives from it
    _watch_operator("_c10d_functional", "wait_tensor", find_listener)


def _watch_operator(namespace: str, name: str, find_listener: WaitListenerSource) -> None:
    packet = getattr(getattr(torch.ops, namespace, None), name, None)
    for operator in (packet, getattr(packet, "default", None)):
        builtin = getattr(operator, "_op", None)
        if callable(builtin):
            operator._op = TimedOperator(builtin, find_listener)  # type: ignore[union-attr]  # noqa: SLF001
