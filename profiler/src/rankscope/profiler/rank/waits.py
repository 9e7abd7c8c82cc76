"""Where the training thread waits for other ranks on the host.

All that training writes in Python ends at few places: ``Work.wait`` (collectives, point-to-point, object collectives, barriers,
FSDP, pipelines, coalesced and batched works), the operator ``wait_tensor`` (functional collectives, DTensor, also from compiled
graphs), futures (communication hooks of DDP) and the monitored barrier. Nothing is imported for it.

Not seen: waits inside C++. DDP's own at the end of backward is seen another way (``ddp``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final, Protocol

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Listener(Protocol):
    """Is told when the thread waits."""

    def enter_wait(self) -> int:
        """The thread is about to wait; returns when, or 0: it is waiting already."""

    def leave_wait(self, started: int) -> None:
        """The wait that began at ``started`` is over."""


Listening = Callable[[], Listener | None]

_WITHOUT_DATA: Final = frozenset(("FakeTensor", "FunctionalTensor"))
"""What operators are called with while a graph is made, which up to torch 2.11 not always counts as compiling. By name: nothing
is imported for it."""


class TimedOperator:
    """Stands in for the builtin inside an operator of ``torch.ops``.

    Compiled graphs call the operator itself, so no function around it would see them; tracing only ever looks at the operator.
    Torch hashes operators by their builtin, so the hash must stay.
    """

    def __init__(self, builtin: Any, listening: Listening) -> None:
        self._builtin = builtin
        self._timed = waiting(builtin, listening)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Do what the builtin does."""
        if args and type(args[0]).__name__ in _WITHOUT_DATA:
            return self._builtin(*args, **kwargs)
        return self._timed(*args, **kwargs)

    def __hash__(self) -> int:
        return hash(self._builtin)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._builtin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builtin, name)


def waiting(original: Callable[..., Any], listening: Listening) -> Callable[..., Any]:
    """``original``, timed as a wait. A wait inside another is part of it."""

    def wait(*args: Any, **kwargs: Any) -> Any:
        listener = listening()
        started = 0 if listener is None else listener.enter_wait()
        if listener is None or not started:
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            listener.leave_wait(started)

    return wait


def waiting_method(original: Callable[..., Any], listening: Listening) -> Callable[..., Any]:
    """``waiting`` for methods.

    With a ``self`` of its own: pybind11 looks for it in the frame that called, to tell ``super().wait()`` in a Python subclass
    from a call that the subclass is to answer.
    """

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        listener = listening()
        started = 0 if listener is None else listener.enter_wait()
        if listener is None or not started:
            return original(self, *args, **kwargs)
        try:
            return original(self, *args, **kwargs)
        finally:
            listener.leave_wait(started)

    return wait


def watch(listening: Listening) -> None:
    """Put the wrappers in place, once per process. ``listening`` is asked at every wait, and answers ``None`` while tracing."""

    def replace(owner: Any, name: str) -> None:
        original = getattr(owner, name, None)
        if original is not None:
            setattr(owner, name, wraps(original)(waiting_method(original, listening)))

    # Broadcasting buffers waits for rank 0, before forward.
    replace(DistributedDataParallel, "_sync_buffers")
    if not dist.is_available():
        return
    replace(dist.Work, "wait")
    replace(dist.ProcessGroup, "monitored_barrier")
    replace(torch._C.Future, "wait")  # noqa: SLF001  # what ``Work.get_future`` returns; the public class derives from it
    _watch_operator("_c10d_functional", "wait_tensor", listening)


def _watch_operator(namespace: str, name: str, listening: Listening) -> None:
    packet = getattr(getattr(torch.ops, namespace, None), name, None)
    for operator in (packet, getattr(packet, "default", None)):
        builtin = getattr(operator, "_op", None)
        if callable(builtin):
            operator._op = TimedOperator(builtin, listening)  # type: ignore[union-attr]  # noqa: SLF001
