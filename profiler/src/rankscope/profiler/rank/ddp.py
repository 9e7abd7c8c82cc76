"""When this rank's own part of a backward pass was over: from there to the end of ``backward()`` a DDP rank waits for the others.

A stall late in backward leaves every other time equal on all ranks, because the all-reduce makes them wait for each other inside
``backward()``. The autograd engine calls what was queued during a pass once its graph is exhausted, first come, first served. DDP
queues its waiting when the last gradient is ready; what is queued here, when the first node runs, is called just before it. So it
does not matter which gradient comes last, nor whether it was another one in the step before.

Seen: the wait inside backward when parameters are on the host, also where reentrant checkpoints run passes inside the pass. Not
seen: what DDP's streams wait for on a device (the host does not wait there), and passes of compiled autograd.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from rankscope.profiler.rank.clock import now

# As DDP's and FSDP's own Python do; where torch has it no more, no pass is ever seen to be exhausted.
_queue: Any = getattr(getattr(Variable, "_execution_engine", None), "queue_callback", None)


_COMPILED: Final = "torch._dynamo.compiled_autograd"
_modules = sys.modules


class Tail:
    """The end of one backward pass.

    ``mark`` marks the place on the time line of the device; ``ready_mark`` is that of the moment when its graph was exhausted.
    """

    __slots__ = ("_exhausted", "hook", "mark", "ready_mark", "stamps")

    def __init__(self, mark: Callable[[], object] | None = None) -> None:
        self.ready_mark: object = None
        # What the engine calls is made of builtins alone. In a Python function, Python's signal handlers would run, inside the
        # pass; and what they raise there, as Ctrl-C does, would keep DDP from ending it.
        self.stamps: deque[int] = deque(maxlen=1)
        """``ready_ns``, for callers that cannot afford a property."""
        self._exhausted: Callable[[], object] = partial(next, map(self.stamps.append, iter(now, None)))
        if mark is not None:
            self._exhausted = partial(self._marking, self._exhausted, mark)
        self.mark = mark
        self.hook: Callable[[object], object] = partial(next, map(_queue, (self._exhausted,)))
        """For the nodes that the pass begins with. ``next(…, gradient)``: the first call queues, and answers ``None``; all others
        answer with the gradient. Either leaves it as it is."""

    def reuse(self) -> None:
        """Be the end of another pass: cheaper than a new one."""
        self.stamps.clear()
        self.ready_mark = None
        self.hook = partial(next, map(_queue, (self._exhausted,)))

    def _marking(self, exhausted: Callable[[], object], mark: Callable[[], object]) -> None:
        # An exception would be training's.
        with suppress(Exception):
            exhausted()
            self.ready_mark = mark()

    @property
    def ready_ns(self) -> int | None:
        """When its graph was exhausted, or ``None`` where that was not seen."""
        return self.stamps[0] if self.stamps else None


class LastGradient:
    """Over all DDP models of this process."""

    def __init__(self) -> None:
        self._models: list[weakref.ref[DistributedDataParallel]] = []
        self.present = False
        """Whether there is any DDP model."""
        self.on_host = True
        """False when some parameters live on a device: the host's waiting says nothing then."""
        self.spare: Tail | None = None
        """One that is not needed any more."""
        self.mark: Callable[[], object] | None = None
        """Marks a place on the device's time line, where there is one."""
        # Registering a hook the public way runs a good deal of Python, at every pass; the dictionary of hooks of a tensor is
        # registered in one call, and may be the same for all nodes. A mode of the script's has no say in it.
        self._hooks: dict[int, Callable[[object], object]] = {}
        with torch._C.DisableTorchFunction(), suppress(AttributeError):  # noqa: SLF001  # not public, see ``_follow``
            self._carrier = Tensor()
            self._carrier._backward_hooks = self._hooks  # type: ignore[assignment]  # noqa: SLF001  # as ``register_hook`` does

    def adopt(self, model: DistributedDataParallel) -> None:
        """Watch a model that was just wrapped."""
        self.on_host &= not any(parameter.device.type != "cpu" for parameter in model.module.parameters())
        self._models.append(weakref.ref(model))
        self.present = True

    def watch(self, roots: object) -> Tail | None:
        """A backward pass over ``roots`` begins; ``None`` when it does not end with an all-reduce (as under ``no_sync``)."""
        for reference in self._models:
            model = reference()
            if model is not None and getattr(model, "require_backward_grad_sync", True):
                break
        else:
            self._models = [reference for reference in self._models if reference() is not None]
            self.present = bool(self._models)
            return None
        tail, self.spare = self.spare, None
        if tail is None or tail.mark is not self.mark:
            tail = Tail(self.mark)
        else:
            tail.reuse()
        self._hooks[0] = tail.hook
        if type(roots) is Tensor:
            self._follow(roots.grad_fn)
        else:
            # A gradient edge has a node, and is a tuple itself.
            for root in roots if isinstance(roots, (list, tuple)) and not hasattr(roots, "node") else (roots,):
                self._follow(root.grad_fn if isinstance(root, Tensor) else getattr(root, "node", None))
        return tail

    def _follow(self, node: Any) -> None:
        # Compiled autograd would trace the hook, anew at every pass. The hook goes with the graph, which is cheaper than taking
        # it off; in a graph that is kept, every pass adds one more that finds nothing left to do.
        if node is not None and _queue is not None and not (_COMPILED in _modules and _compiled_autograd()):
            try:
                node._register_hook_dict(self._carrier)  # noqa: SLF001  # as ``Tensor.register_hook`` does
            except AttributeError:
                return  # not public; what torch lacks is not seen

    def close(self) -> None:
        """Forget the models: nobody will ask again."""
        self._models = []
        # Emptied, not taken away: a pass on another thread may be about to register it.
        self._hooks.clear()
        self.present = False
        self.mark = self.spare = None


def _compiled_autograd() -> bool:
    module = _modules.get(_COMPILED)
    return bool(getattr(module, "compiled_autograd_enabled", False))
