"""Attaches the recorder to every Python process of a launched job, by being first on PYTHONPATH.

It must cost nothing in processes that do not train: it only waits for the import of ``torch``. It runs the ``sitecustomize``
that it hides.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from _thread import get_ident
from collections.abc import Callable, Sequence
from types import ModuleType

# Importing pathlib would take a third of this file's cost in every Python process of the job.
_SITE_FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
_REPORTED_VARIABLE = "RANKSCOPE_SAID_MISSING"
# Programs that start the ranks and do not train themselves, and the modules behind them.
_LAUNCHERS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed", "fabric")
_LAUNCHER_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.accelerate_cli",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
    "deepspeed.launcher.launch",
    "lightning.fabric.cli",
)


def _trains() -> bool:
    """Return whether this process may train: launchers, compile workers and jobs without a run do not."""
    if not os.environ.get("RANKSCOPE_RUN_DIR"):
        return False
    words = sys.orig_argv
    if any("compile_worker" in word for word in words):
        return False
    # Matches `torchrun …` and `python -m torch.distributed.run …`, but not a script with such a word as an argument.
    program = next((index for index, word in enumerate(words[1:], 1) if word == "-m" or not word.startswith("-")), None)
    if program is None:
        return True
    if words[program] == "-m":
        module = words[program + 1] if program + 1 < len(words) else ""
        return module not in _LAUNCHER_MODULES
    return os.path.basename(words[program]) not in _LAUNCHERS  # noqa: PTH119


class _WaitForTorch:
    """Meta path finder that attaches the recorder after the import of torch.

    A call of ``find_spec`` is no import yet: ``importlib.util.find_spec("torch")`` calls it too.
    """

    def __init__(self) -> None:
        self._asking: set[int] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        thread_id = get_ident()
        if name != "torch" or thread_id in self._asking:
            return None
        self._asking.add(thread_id)
        try:
            spec = importlib.util.find_spec("torch")
        finally:
            self._asking.discard(thread_id)
        try:
            _call_after(spec, self._attach)
        except Exception as error:  # noqa: BLE001  # a custom loader must still load torch
            _say(f"torch's loader cannot be followed: {error}. Training goes on.")
        return spec

    def _attach(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            _attach()


def _call_after(spec: importlib.machinery.ModuleSpec | None, call: Callable[[], None]) -> None:
    loader = None if spec is None else spec.loader
    if loader is None:
        return
    execute = loader.exec_module

    def execute_and_call(module: ModuleType) -> None:
        execute(module)
        call()

    loader.exec_module = execute_and_call  # type: ignore[method-assign]


def _attach() -> None:
    try:
        from rankscope.profiler.rank.wrappers.attach import install
    except Exception as error:  # noqa: BLE001  # a broken installation must not break training
        _say(
            f"this Python ({sys.executable}) cannot load the recorder: {error}; install rankscope into it. Training goes on.",
        )
        return
    install()


def _say(reason: str) -> None:
    """Print once, on local rank 0, why this job is not recorded."""
    if not os.environ.get(_REPORTED_VARIABLE) and os.environ.get("LOCAL_RANK", "0") == "0":
        os.environ[_REPORTED_VARIABLE] = "1"
        print(f"rankscope: not recording: {reason}", file=sys.stderr)


def _run_hidden() -> None:
    """Run the ``sitecustomize`` that this one hides."""
    elsewhere = [folder for folder in sys.path if os.path.abspath(folder) != _SITE_FOLDER]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if _trains() and "torch" not in sys.modules:
    sys.meta_path.insert(0, _WaitForTorch())
_run_hidden()
