"""Reports of checkpoints, through wrappers around the functions that write them.

Nothing is imported for this: modules that the script imports later are wrapped when it does.
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


class CheckpointListener(Protocol):
    """Receiver of checkpoints."""

    def enter_checkpoint(self) -> bool:
        """Begin a checkpoint. False: do not report its end."""

    def leave_checkpoint(self) -> None:
        """End the checkpoint, written or failed."""


CheckpointListenerSource = Callable[[], CheckpointListener | None]

_LATER: Final[dict[str, Sequence[str]]] = {
    # Of an asynchronous checkpoint only the copy counts, because training waits for it.
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save"),
    "safetensors.torch": ("save_file", "save_model"),
}
"""Functions that write checkpoints, by module."""
_STORAGES: Final = (torch.UntypedStorage, torch.storage.TypedStorage)
_NAMED_AGAIN: Final = {"torch.distributed.checkpoint.state_dict_saver": "torch.distributed.checkpoint"}
"""Packages that re-export these functions, by module."""


def watch(find_listener: CheckpointListenerSource) -> None:
    """Install the wrappers, once per process. ``find_listener`` returns ``None`` while there is no listener."""
    # Replace both names, or the function could no longer be pickled.
    torch.save = torch.serialization.save = _reported(torch.save, find_listener)
    later = {}
    for name, functions in _LATER.items():
        module = sys.modules.get(name)
        if module is None:
            later[name] = functions
            continue
        _wrap(module, functions, find_listener)
        package = sys.modules.get(_NAMED_AGAIN.get(name, ""))
        if package is not None:
            for function in functions:
                setattr(package, function, getattr(module, function))
    if later:
        sys.meta_path.insert(0, _Finder(later, find_listener))


def _wrap(module: ModuleType, functions: Sequence[str], find_listener: CheckpointListenerSource) -> None:
    for name in functions:
        original = getattr(module, name, None)
        if original is not None:
            setattr(module, name, _reported(original, find_listener))


def _reported(original: Callable[..., Any], find_listener: CheckpointListenerSource) -> Callable[..., Any]:
    @wraps(original)
    def write(*args: Any, **kwargs: Any) -> Any:
        # Pickling a tensor, as for another process, saves its storage in memory.
        is_pickling = bool(args) and isinstance(args[0], _STORAGES)
        listener = None if is_pickling else find_listener()
        if listener is None or not listener.enter_checkpoint():
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            listener.leave_checkpoint()

    return write


class _Finder:
    """Meta path finder that wraps the functions of a wanted module after its import."""

    def __init__(self, wanted: dict[str, Sequence[str]], find_listener: CheckpointListenerSource) -> None:
        self._wanted = wanted
        self._find_listener = find_listener
        self._asking: set[tuple[str, int]] = set()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See ``importlib.abc.MetaPathFinder``."""
        del path, target
        # A caller of ``find_spec`` may not import the module, so the wanted name stays until it is executed.
        request = (name, get_ident())
        if name not in self._wanted or request in self._asking:
            return None
        self._asking.add(request)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking.discard(request)
        if spec is not None and spec.loader is not None:
            # A module with a custom loader must load, wrapped or not.
            with suppress(Exception):
                self._follow(name, spec.loader)
        return spec

    def _follow(self, name: str, loader: Any) -> None:
        execute = loader.exec_module

        def execute_and_wrap(module: ModuleType) -> None:
            execute(module)
            _wrap(module, self._wanted.pop(name, ()), self._find_listener)

        loader.exec_module = execute_and_wrap
