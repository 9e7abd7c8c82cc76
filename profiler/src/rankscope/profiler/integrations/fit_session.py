"""Shared code of the callbacks of all frameworks: one recording per fit, and hooks that never break the fit."""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from rankscope.profiler.rank.guard import print_line, raised_by_a_signal_handler
from rankscope.profiler.rank.wrappers import attach
from rankscope.profiler.settings import RecorderSettings, from_environment
from rankscope.profiler.step import StepProfiler

_recorded: Final[Counter[str]] = Counter()
"""Number of fits that this process recorded per ``run_dir``, including those in ``run_dir``-2, -3, …"""
_OPTIONS: Final = inspect.signature(StepProfiler)


class FitSession:
    """Recordings of one callback, one per fit. Only the constructor raises.

    The first fit of a process is recorded in ``run_dir``, later ones in ``run_dir``-2, -3, … ``run_dir`` must be the same folder
    on all ranks. Under ``rankscope run`` the launcher's folder and settings replace these. A fit without a single step leaves no
    record. ``options`` are those of ``StepProfiler``.

    Raises ``ValueError`` if there is neither a ``run_dir`` nor a launcher, and ``TypeError`` for an unknown option.
    """

    def __init__(self, run_dir: str | os.PathLike[str] | None, options: dict[str, Any]) -> None:
        if run_dir is None and _launched() is None:
            raise ValueError("run_dir is missing: name a folder, the same on all ranks, or start the job with `rankscope run`")
        _OPTIONS.bind("", **options)
        self._run_dir = None if run_dir is None else str(Path(run_dir).absolute())
        self._options = options
        self._profiler: StepProfiler | None = None
        self._folder = ""
        self._work: list[tuple[int | None, int | None, float | None]] = []
        self._steps = 0
        self.off = False
        """True if an error in the callback has switched it off for good."""

    @property
    def active(self) -> bool:
        """True while a fit is being recorded."""
        return self._profiler is not None

    def begin(self) -> None:
        """Begin a fit and its first step. A fit that is still open ended by an exception that no hook reported."""
        self.end(RuntimeError("the fit before this one did not end"))
        launched = _launched()
        if launched is None:
            assert self._run_dir is not None
            self._folder, options = self._run_dir, self._options
        else:
            self._folder, options = launched.run_dir, self._options | _options_of(launched)
        number = _recorded[self._folder] + 1
        run_dir = self._folder if number == 1 else f"{self._folder}-{number}"
        self._work.clear()
        self._steps = 0
        self._profiler = StepProfiler(run_dir, **options).__enter__()

    def add(self, samples: int | None, tokens: int | None, flops: float | None) -> None:
        """Add one more batch to the step; ``None``: not known. ``flops``: forward and backward on this rank."""
        if self._profiler is not None:
            self._work.append((samples, tokens, flops))

    def step(self) -> None:
        """End the step."""
        if self._profiler is not None:
            samples, tokens, flops = (_total(values) for values in zip(*self._work, strict=True)) if self._work else [None] * 3
            self._profiler.step(samples=samples, tokens=tokens, flops=flops)
            self._work.clear()
            self._steps += 1

    def tag(self, tag: str) -> None:
        """Add ``tag`` to this step."""
        if self._profiler is not None:
            self._profiler.tag(tag)

    def metric(self, name: str, value: float) -> None:
        """Record a number of the script in this step."""
        if self._profiler is not None:
            self._profiler.metric(name, value)

    def end(self, error: BaseException | None = None) -> None:
        """End the fit; ``error``: the exception that ended it, if any. Does nothing if no fit is open."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        if self._steps:
            _recorded[self._folder] += 1
        profiler.__exit__(None if error is None else type(error), error, None)

    def disable(self, reason: str) -> None:
        """Switch off for good, and report it once. Never raises."""
        self.off = True
        with suppress(Exception):
            recorder = attach.current() if self.active else None
            if recorder is None:
                print_line(f"the callback switched itself off ({reason}); training goes on")
            else:
                recorder.disable(reason)
        with suppress(Exception):
            self.end()


def _launched() -> RecorderSettings | None:
    """Return the settings from the launcher of this process, if there was one."""
    try:
        return from_environment(os.environ)
    except ValueError:
        return None  # a damaged variable; the recorder reports it


def _options_of(launched: RecorderSettings) -> dict[str, Any]:
    """Return the launcher's settings as options of ``StepProfiler``."""
    options = launched.chosen() | {"name": launched.name}
    if launched.coordinates is None:
        # The launcher cannot know the coordinates of a single rank.
        del options["coordinates"]
    return options


def _total(values: tuple[Any, ...]) -> Any:
    """Return the sum of ``values``, or ``None`` if one is not known."""
    return None if None in values else sum(values)


_H = TypeVar("_H", bound=Callable[..., None])


def harmless(hook: _H) -> _H:
    """Wrap a hook of a callback that has a ``fit: FitSession``: an exception switches ``fit`` and all hooks off for good."""

    @wraps(hook)
    def safe(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.fit.off:
            return
        try:
            hook(self, *args, **kwargs)
        except Exception as error:
            if raised_by_a_signal_handler(error):
                raise
            # No error may stop training.
            self.fit.disable(f"{type(error).__name__}: {error}")

    return cast("_H", safe)
