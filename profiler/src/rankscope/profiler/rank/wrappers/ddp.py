"""End of this rank's own part of a backward pass: from there to the end of ``backward()`` a DDP rank waits for the others.

A stall late in backward leaves every other time equal on all ranks, because the all-reduce makes them wait for each other inside
``backward()``. The autograd engine runs the callbacks that were queued during a pass once its graph is exhausted, in the order of
queueing. DDP queues its wait when the last gradient is ready. The callback of this module is queued when the first node runs, so
it is called just before DDP's. Therefore it does not matter which gradient comes last, or whether that changes between steps.

Measured: the wait inside backward when parameters are on the host, also where reentrant checkpoints run passes inside the pass.
Not measured: waits of DDP's streams on a device (the host does not wait there), and passes of compiled autograd.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import repeat, tee
from operator import setitem
from time import perf_counter_ns as now
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

# The function that DDP's and FSDP's Python code use; on a torch without it, the exhaustion of a graph is never observed.
_queue: Any = getattr(getattr(Variable, "_execution_engine", None), "queue_callback", None)


_set: Any = setitem
_COMPILED: Final = "torch._dynamo.compiled_autograd"
_modules = sys.modules
_FOLLOWED: Final = "rankscope"
"""Key of a node's metadata: the tensor whose hooks it has."""


class PassEnd:
    """End of one backward pass.

    ``mark`` places a mark on the device and returns it; ``ready_mark`` is that of when the graph was exhausted. That time is
    also stored into the memory in ``ready`` at once, see ``RingWriter.ready``.
    """

    __slots__ = ("_exhausted", "hook", "mark", "ready_mark", "stamps")

    def __init__(self, mark: Callable[[], object] | None, ready: list[memoryview]) -> None:
        self.ready_mark: object = None
        # The callback consists of builtins alone: in a Python function, signal handlers could run inside the pass, and an
        # exception of theirs (as of Ctrl-C) would keep DDP from ending it.
        self.stamps: deque[int] = deque(maxlen=1)
        """Time when the graph was exhausted; empty: that was not observed."""
        times, same_times = tee(iter(now, None))
        shown = map(_set, map(ready.__getitem__, repeat(0)), repeat(0), same_times)
        self._exhausted: Callable[[], object] = partial(next, zip(map(self.stamps.append, times), shown, strict=False))
        self.mark = mark
        if mark is not None:
            self._exhausted = partial(self._marking, self._exhausted)
        self.hook: Callable[[object], object] = partial(next, map(_queue, (self._exhausted,)))
        """Hook for the nodes that the pass begins with. ``next(…, gradient)``: the first call queues the callback and returns
        ``None``; all others return the gradient. Both leave the gradient unchanged."""

    def reuse(self) -> None:
        """Reset this object for another pass, which is cheaper than a new one."""
        self.stamps.clear()
        self.ready_mark = None
        self.hook = partial(next, map(_queue, (self._exhausted,)))

    def hook_of_all(self) -> Callable[[object], object]:
        """Return a hook for one node that runs once in every pass."""
        return partial(next, map(_queue, repeat(self._exhausted)))

    def _marking(self, exhausted: Callable[[], object]) -> None:
        # An exception would reach training.
        with suppress(Exception):
            exhausted()
            if self.mark is not None:
                self.ready_mark = self.mark()


class PassEndDetector:
    """Detector of the end of backward passes over all DDP models of this process.

    With one model, all of whose parameters get a gradient in every pass, one hook at the first of them serves all passes: it is
    usually the last that is ready. Otherwise each pass gets a hook at the nodes that it begins with.
    """

    def __init__(self, ready: list[memoryview]) -> None:
        self._ready = ready
        self._models: list[weakref.ref[DistributedDataParallel]] = []
        self.present = False
        """True if there is any DDP model."""
        self.on_host = True
        """False if some parameters are on a device: the host's wait is then meaningless."""
        self.mark: Callable[[], object] | None = None
        """Function that places a mark on the device and returns it; ``None`` without one."""
        self._spare: PassEnd | None = None
        """A ``PassEnd`` that can be reused."""
        self.shared_end: PassEnd | None = None
        """The ``PassEnd`` of all passes, where one hook serves them all."""
        self._model: Callable[[], DistributedDataParallel | None] = lambda: None
        """The model of ``shared_end``."""
        self._handle: Any = None
        # The public way to register a hook runs much Python at every pass. A tensor's dictionary of hooks is registered in one
        # call and may be shared by all nodes. The script's torch function modes must not affect it.
        self._hooks: dict[int, Callable[[object], object]] = {}
        with torch._C.DisableTorchFunction(), suppress(AttributeError):  # noqa: SLF001  # not public, see ``_follow``
            self._carrier = Tensor()
            self._carrier._backward_hooks = self._hooks  # type: ignore[assignment]  # noqa: SLF001  # as ``register_hook`` does

    def adopt(self, model: DistributedDataParallel) -> None:
        """Watch a model that was just wrapped in DDP."""
        parameters = [parameter for parameter in model.module.parameters() if parameter.requires_grad]
        self.on_host &= not any(parameter.device.type != "cpu" for parameter in model.module.parameters())
        self._models.append(weakref.ref(model))
        self.present = True
        self.forget_shared_end()
        if len(self._models) == 1 and parameters and not getattr(model, "find_unused_parameters", True):
            self._watch_all(model, parameters[0])

    def _watch_all(self, model: DistributedDataParallel, first: Tensor) -> None:
        pass_end = PassEnd(None if self.on_host else self._placed, self._ready)
        try:
            with torch._C.DisableTorchFunction(), torch.enable_grad():  # noqa: SLF001  # as above
                node: Any = first.view_as(first).grad_fn
            self._handle = node.next_functions[0][0].register_prehook(pass_end.hook_of_all())
        except (AttributeError, IndexError, RuntimeError):
            return  # a torch, or a kind of tensor, without it
        self.shared_end, self._model = pass_end, weakref.ref(model)

    def _placed(self) -> object:
        return None if self.mark is None else self.mark()

    def forget_shared_end(self) -> None:
        """Watch each pass by itself from now on."""
        self.shared_end = None
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()

    def watch_pass(self, roots: object) -> PassEnd | None:
        """Watch the outermost backward pass over ``roots``, which begins; ``None`` as for ``watch``."""
        pass_end = self.shared_end
        if pass_end is not None:
            model = self._model()
            # Compiled autograd would trace the hook.
            compiled = _modules.get(_COMPILED)
            if model is not None and (compiled is None or not getattr(compiled, "compiled_autograd_enabled", False)):
                if not model.require_backward_grad_sync:
                    return None
                pass_end.stamps.clear()
                pass_end.ready_mark = None
                return pass_end
            self.forget_shared_end()
        return self.watch(roots)

    def watch(self, roots: object) -> PassEnd | None:
        """Watch the backward pass over ``roots`` that begins; ``None`` if it ends without an all-reduce (under ``no_sync``)."""
        if self.shared_end is not None:
            self.forget_shared_end()
        for reference in self._models:
            model = reference()
            if model is not None and getattr(model, "require_backward_grad_sync", True):
                break
        else:
            self._models = [reference for reference in self._models if reference() is not None]
            self.present = bool(self._models)
            return None
        pass_end, self._spare = self._spare, None
        if pass_end is None or pass_end.mark is not self.mark:
            pass_end = PassEnd(self.mark, self._ready)
        else:
            pass_end.reuse()
        self._hooks[0] = pass_end.hook
        if type(roots) is Tensor:
            self._follow(roots.grad_fn)
        else:
            # A gradient edge has a node, but is itself a tuple.
            for root in roots if isinstance(roots, (list, tuple)) and not hasattr(roots, "node") else (roots,):
                self._follow(root.grad_fn if isinstance(root, Tensor) else getattr(root, "node", None))
        return pass_end

    def passed(self, pass_end: PassEnd) -> None:
        """Note that the pass of ``pass_end`` is over."""
        if pass_end is not self.shared_end:
            self._spare = pass_end
        elif not pass_end.stamps:
            # Not every pass reaches that parameter.
            self.forget_shared_end()

    def _follow(self, node: Any) -> None:
        # Compiled autograd would trace the hook again at every pass. The hook is freed with the graph, which is cheaper than
        # removing it; a retained graph has it already.
        if node is not None and _queue is not None and not (_COMPILED in _modules and _compiled_autograd()):
            try:
                if node.metadata.get(_FOLLOWED) is not self._carrier:
                    node._register_hook_dict(self._carrier)  # noqa: SLF001  # as ``Tensor.register_hook`` does
                    node.metadata[_FOLLOWED] = self._carrier
            except AttributeError:
                return  # not public; on a torch without it the pass is not watched

    def groups(self) -> list[object]:
        """Return the process groups in which the models reduce their gradients."""
        models = [model for reference in self._models if (model := reference()) is not None]
        return [model.process_group for model in models]

    def pass_ends(self) -> list[object]:
        """Return what holds the marks of backward passes."""
        return [self._spare, self.shared_end, *self._hooks.values()]

    def close(self) -> None:
        """Release the models at the end of the recording."""
        self._models = []
        # Cleared, not replaced: a pass on another thread may be about to register it.
        self._hooks.clear()
        self.present = False
        self.mark = self._spare = None
        self.forget_shared_end()


def _compiled_autograd() -> bool:
    module = _modules.get(_COMPILED)
    return bool(getattr(module, "compiled_autograd_enabled", False))
