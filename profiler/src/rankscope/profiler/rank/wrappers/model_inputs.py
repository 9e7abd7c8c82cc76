"""Batches where they enter the model: the arguments of the outermost data parallel module's forward.

A script may change batches after they were loaded, so how much a rank computes on is known for sure only here. Each kind of data
parallelism has a function that receives these arguments before every forward, and that is looked up at every call. Wrapping these
functions needs no module hooks, so saved and copied models have none. The arguments are passed on unchanged.

FSDP calls its function for every sharded module. Modules inside another are known once the outermost has run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any, Final, Protocol

import torch
from torch.compiler import is_dynamo_compiling

# The public way imports the compiler, which takes seconds.
_frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)  # noqa: SLF001
_ROOT: Final = "_root_pre_forward"
_PLACES: Final = (
    # Also called by ``torch.distributed._composable.replicate``.
    ("torch.nn.parallel.distributed", "DistributedDataParallel", "_pre_forward"),
    ("torch.distributed.fsdp._fully_shard._fsdp_state", "FSDPState", _ROOT),
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "", _ROOT),
)
"""Module, class (or the module itself) and name of each function."""


class InputListener(Protocol):
    """Receiver of the arguments."""

    measures_input: bool
    """Whether the arguments are wanted in this step."""

    def enter_model(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the arguments of a call of the model."""


_listener: InputListener | None = None


def report_to(listener: InputListener) -> None:
    """Report the arguments to ``listener`` from now on."""
    global _listener  # noqa: PLW0603  # a function that returned it would be one more call in every step
    _listener = listener


def watch() -> None:
    """Wrap those of the functions whose modules are loaded and that are not wrapped yet. Never raises."""
    for module, owner, name in _PLACES:
        with suppress(Exception):  # torch's own functions, which may change; without them this work is unknown
            place = sys.modules.get(module)
            place = getattr(place, owner) if place and owner else place
            original = getattr(place, name, None)
            if original is not None and not hasattr(original, "rankscope_original"):
                wrapper = wraps(original)((_of_root if name == _ROOT else _of_call)(original))
                for function in (wrapper, _report):
                    _exclude_from_graphs(function)
                wrapper.rankscope_original = original  # type: ignore[attr-defined]
                setattr(place, name, wrapper)


def _of_call(original: Callable[..., Any]) -> Callable[..., Any]:
    def pre_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_dynamo_compiling() and _listener is not None and _listener.measures_input:
            _report(_listener, args, kwargs)
        return original(self, *args, **kwargs)

    return pre_forward


def _of_root(original: Callable[..., Any]) -> Callable[..., Any]:
    def root_pre_forward(state: Any, module: Any, args: Any, kwargs: Any) -> Any:
        # ``None`` until a first forward shows which module is the outermost.
        if (
            not is_dynamo_compiling()
            and _listener is not None
            and _listener.measures_input
            and getattr(state, "_is_root", False) is not False
        ):
            _report(_listener, args, kwargs)
        return original(state, module, args, kwargs)

    return root_pre_forward


def _report(listener: InputListener, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    # Between the graphs of a compiled model, the compiler would also compile the functions that are called from here.
    compiler = _frames.set_eval_frame(None)
    try:
        listener.enter_model(args, kwargs)
    finally:
        _frames.set_eval_frame(compiler)


def _exclude_from_graphs(function: Any) -> None:
    """Have torch.compile run ``function`` as it is between graphs. Raises ``AttributeError`` on a torch that cannot."""
    if hasattr(_frames, "skip_code"):
        _frames.skip_code(function.__code__)
    else:
        action = _frames._FrameAction  # noqa: SLF001  # as above
        _frames.set_code_exec_strategy(
            function.__code__,
            _frames._FrameExecStrategy(action.SKIP, action.DEFAULT),  # noqa: SLF001  # as above
        )
