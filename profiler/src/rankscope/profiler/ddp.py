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
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch import Tensor
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from rankscope.profiler.clock import now

_engine: Any = Variable._execution_engine  # noqa: SLF001  # as DDP's and FSDP's own Python do


class Tail:
    """The end of one backward pass. ``ready_ns``: when its graph was exhausted, or ``None`` where that was not seen.

    ``mark`` marks the place on the time line of the device; ``ready_mark`` is that of the same moment.
    """

    __slots__ = ("_mark", "outer", "queued", "ready_mark", "ready_ns")

    def __init__(self, mark: Callable[[], object] | None = None, outer: Tail | None = None) -> None:
        self.ready_ns: int | None = None
        self.ready_mark: object = None
        self.queued = False
        """Whether nothing is to be queued any more."""
        self.outer = outer
        """Of the pass that this one is inside of."""
        self._mark = mark

    def exhausted(self) -> None:
        """Called by the engine."""
        self.ready_ns = now()
        if self._mark is not None:
            # An exception would be training's.
            with suppress(Exception):
                self.ready_mark = self._mark()


class LastGradient:
    """Over all DDP models of this process."""

    def __init__(self) -> None:
        self._models: list[weakref.ref[DistributedDataParallel]] = []
        self.present = False
        """Whether there is any DDP model."""
        self.on_host = True
        """False when some parameters live on a device: the host's waiting says nothing then."""
        self.mark: Callable[[], object] | None = None
        """Marks a place on the device's time line, where there is one."""
        self._current: Tail | None = None
        # Registering a hook the public way runs a good deal of Python, at every pass; the dictionary of hooks of a tensor is
        # registered in one call, and may be the same for all nodes.
        self._carrier = Tensor()
        self._carrier._backward_hooks = {0: self._begins}  # noqa: SLF001  # as ``Tensor.register_hook`` does

    def adopt(self, model: DistributedDataParallel) -> None:
        """Watch a model that was just wrapped."""
        self.on_host &= not any(parameter.device.type != "cpu" for parameter in model.module.parameters())
        self._models.append(weakref.ref(model))
        self.present = True

    def watch(self, roots: object, *, inside: bool = False) -> Tail | None:
        """A backward pass over ``roots`` begins, maybe ``inside`` another.

        ``None`` when it does not end with an all-reduce (as under ``no_sync``).
        """
        for reference in self._models:
            model = reference()
            if model is not None and getattr(model, "require_backward_grad_sync", True):
                break
        else:
            self._models = [reference for reference in self._models if reference() is not None]
            self.present = bool(self._models)
            return None
        tail = self._current = Tail(self.mark, self._current if inside else None)
        if isinstance(roots, Tensor):
            self._follow(roots.grad_fn)
        else:
            # A gradient edge has a node, and is a tuple itself.
            for root in roots if isinstance(roots, (list, tuple)) and not hasattr(roots, "node") else (roots,):
                self._follow(root.grad_fn if isinstance(root, Tensor) else getattr(root, "node", None))
        return tail

    def leave(self, tail: Tail) -> None:
        """The pass has returned, or raised."""
        tail.queued = True
        self._current = tail.outer

    def _follow(self, node: Any) -> None:
        # Compiled autograd would trace the hook, anew at every pass. The hook goes with the graph, which is cheaper than taking
        # it off; in a graph that is kept for another pass one of them finds nothing left to do.
        if node is not None and not _compiled_autograd():
            node._register_hook_dict(self._carrier)  # noqa: SLF001  # as ``Tensor.register_hook`` does

    def _begins(self, *_gradients: object) -> None:
        # Inside the engine: an exception would be training's.
        try:
            tail = self._current
            if tail is not None and not tail.queued:
                tail.queued = True
                _engine.queue_callback(tail.exhausted)
        except Exception:  # noqa: BLE001, S110  # ``ready_ns`` says that it was not seen
            pass

    def close(self) -> None:
        """Forget the models: nobody will ask again."""
        self._models = []
        self._current = None
        self._carrier._backward_hooks = None  # noqa: SLF001  # it leads back here
        self.present = False
        self.mark = None


def _compiled_autograd() -> bool:
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(module, "compiled_autograd_enabled", False))
