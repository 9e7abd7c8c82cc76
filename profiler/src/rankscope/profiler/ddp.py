"""When the last gradient of a backward pass was ready: from there to the end of backward a DDP rank waits for the others.

A stall late in backward leaves every other time equal on all ranks, because the all-reduce makes them wait for each other inside
``backward()``. Hooks go on all parameters for a few passes, then stay only on those that came last.

Seen: the wait inside backward when parameters are on the host. Not seen: what DDP's streams wait for on a device (the host does
not wait there), and communication hooks that wait elsewhere.
"""

from __future__ import annotations

import weakref
from typing import Final

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from rankscope.profiler.clock import now

_LEARNING_PASSES: Final = 3
_WATCHED_PER_PASS: Final = 3


class _Instance:
    """The hooks on the parameters of one DDP model."""

    def __init__(self, model: DistributedDataParallel, watch: LastGradient) -> None:
        self.model = weakref.ref(model)
        self._watch = watch
        self._order: list[int] = []
        self._last: set[int] = set()
        self._passes = 0
        self._handles: dict[int, RemovableHandle] = {}
        for parameter in model.module.parameters():
            if parameter.requires_grad and parameter.is_leaf:
                self._handles[id(parameter)] = parameter.register_post_accumulate_grad_hook(self._ready_while_learning)

    def _ready_while_learning(self, parameter: Tensor) -> None:
        self._watch.ready_ns = now()
        if self._passes < _LEARNING_PASSES:
            self._order.append(id(parameter))

    def pass_done(self) -> None:
        """A synchronising backward pass has ended: learn from it."""
        if self._passes >= _LEARNING_PASSES or not self._order:
            return
        self._passes += 1
        self._last.update(self._order[-_WATCHED_PER_PASS:])
        self._order.clear()
        if self._passes == _LEARNING_PASSES:
            for key in self._handles.keys() - self._last:
                self._handles.pop(key).remove()

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()


class LastGradient:
    """Over all DDP models of this process. ``ready_ns`` is the last readiness seen since ``begin``, or ``None``."""

    def __init__(self) -> None:
        self._instances: list[_Instance] = []
        self.ready_ns: int | None = None
        self.on_host = True
        """False when some parameters live on a device: the host's waiting says nothing then."""

    @property
    def present(self) -> bool:
        """Whether there is any DDP model."""
        return bool(self._instances)

    def adopt(self, model: DistributedDataParallel) -> None:
        """Watch a model that was just wrapped."""
        self.on_host &= not any(parameter.device.type != "cpu" for parameter in model.module.parameters())
        if self.on_host:
            self._instances.append(_Instance(model, self))

    def begin(self) -> None:
        """A backward pass starts."""
        self.ready_ns = None

    def synchronises(self) -> bool:
        """Whether a backward pass now ends with an all-reduce (it does not under ``no_sync``)."""
        self._instances = [instance for instance in self._instances if instance.model() is not None]
        models = [model for instance in self._instances if (model := instance.model()) is not None]
        return any(getattr(model, "require_backward_grad_sync", True) for model in models)

    def close(self) -> None:
        """Take all hooks off and forget the models: nobody will ask again."""
        for instance in self._instances:
            instance.close()
        self._instances = []

    def end(self) -> None:
        """A synchronising backward pass has ended."""
        for instance in self._instances:
            instance.pass_done()
