"""Checkpoints: the functions that write them, wherever they come from, are reported.

Nothing is imported for it: what the script imports later is found when it does.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from importlib.machinery import ModuleSpec
from threading import get_ident
from types import ModuleType
from typing import Any, Final, Protocol

import torch


class Listener(Protocol):
    """Is told of checkpoints."""

    def enter_checkpoint(self) -> bool:
        """One is being written. False: do not report its end."""

    def leave_checkpoint(self) -> None:
        """It is written, or could not be."""


Listening = Callable[[], Listener | None]

_LATER: Final[dict[str, Sequence[str]]] = {
    # Of an asynchronous one, what training waits for: the copy.
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save"),
    "safetensors.torch": ("save_file", "save_model"),
}
"""Module to the functions in it that write checkpoints."""
_NAMED_AGAIN: Final = {"torch.distributed.checkpoint.state_dict_saver": "torch.distributed.checkpoint"}
"""Packages that hand on these functions."""


def watch(listening: Listening) -> None:
    """Put the wrappers in place, once per process. ``listening`` answers ``None`` while nobody listens."""
    # Both names, or it could no longer be pickled.
    torch.save = torch.serialization.save = _reported(torch.save, listening)
    later = {}
    for name, functions in _LATER.items():
        module = sys.modules.get(name)
        if module is None:
            later[name] = functions
            continue
        _wrap(module, functions, listening)
        package = sys.modules.get(_NAMED_AGAIN.get(name, ""))
        if package is not None:
            for function in functions:
                setattr(package, function, getattr(module, function))
    if later:
        sys.meta_path.insert(0, _Finder(later, listening))


def _wrap(module: ModuleType, functions: Sequence[str], listening: Listening) -> None:
    for name in functions:
        original = getattr(module, name, None)
        if original is not None:
            setattr(module, name, _reported(original, listening))


def _reported(original: Callable[..., Any], listening: Listening) -> Callable[..., Any]:
    @wraps(original)
    def write(*args: Any, **kwargs: Any) -> Any:
        listener = listening()
        if listener is None or not listener.enter_checkpoint():
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            listener.leave_checkpoint()

    return write


class _Finder:
    """Finds nothing itself; it sees that a module is being imported and wraps its functions once it is."""

    def __init__(self, wanted: dict[str, Sequence[str]], listening: Listening) -> None:
        self._wanted = wanted
        self._listening = listening
        self._asking: set[tuple[str, int]] = set()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See ``importlib.abc.MetaPathFinder``."""
        del path, target
        # Whoever asks need not import it.
        asked = (name, get_ident())
        if name not in self._wanted or asked in self._asking:
            return None
        self._asking.add(asked)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking.discard(asked)
        if spec is not None and spec.loader is not None:
            # A loader of somebody's own: its module must load, with or without us.
            with suppress(Exception):
                self._follow(name, spec.loader)
        return spec

    def _follow(self, name: str, loader: Any) -> None:
        execute = loader.exec_module

        def execute_and_wrap(module: ModuleType) -> None:
            execute(module)
            _wrap(module, self._wanted.pop(name, ()), self._listening)

        loader.exec_module = execute_and_wrap
