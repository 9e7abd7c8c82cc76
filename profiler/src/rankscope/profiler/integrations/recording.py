"""What the callbacks of all frameworks share: one recording per fit, and the promise that a hook never breaks the fit."""

from __future__ import annotations

import inspect
import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import msgspec

from rankscope.profiler.rank import attach
from rankscope.profiler.rank.guard import raised_by_a_signal_handler
from rankscope.profiler.settings import RecorderSettings, from_environment
from rankscope.profiler.step import StepProfiler

_recorded: Final[Counter[str]] = Counter()
"""How many fits of this process went to each folder and its numbered neighbours."""
_OPTIONS: Final = inspect.signature(StepProfiler)


class FitRecording:
    """The recordings of one callback, one per fit. Only the constructor raises.

    The first fit of a process is recorded in ``run_dir``, which must be the same folder on all ranks, later ones in
    ``run_dir``-2, -3, … Under ``rankscope run`` the launcher's folder and settings hold instead of these. A fit without a single
    step leaves nothing. ``options`` are those of ``StepProfiler``.

    Raises ``ValueError`` when there is neither a ``run_dir`` nor a launcher, and ``TypeError`` for an unknown option.
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
        """Whether a fault of the callback's own has switched it off for good."""

    @property
    def active(self) -> bool:
        """Whether a fit is being recorded."""
        return self._profiler is not None

    def begin(self) -> None:
        """A fit begins, and its first step. One that is still open ended by an exception that nobody told of."""
        self.end(RuntimeError("the fit before this one did not end"))
        launched = _launched()
        if launched is None:
            assert self._run_dir is not None
            self._folder, options = self._run_dir, self._options
        else:
            self._folder, options = launched.run_dir, self._options | _said_by(launched)
        number = _recorded[self._folder] + 1
        run_dir = self._folder if number == 1 else f"{self._folder}-{number}"
        self._work.clear()
        self._steps = 0
        self._profiler = StepProfiler(run_dir, **options).__enter__()

    def add(self, samples: int | None, tokens: int | None, flops: float | None) -> None:
        """The step works on one more batch; ``None`` is what is not known of it. ``flops``: forward and backward on this rank."""
        if self._profiler is not None:
            self._work.append((samples, tokens, flops))

    def step(self) -> None:
        """The step ends here."""
        if self._profiler is not None:
            samples, tokens, flops = (_total(values) for values in zip(*self._work, strict=True)) if self._work else [None] * 3
            self._profiler.step(samples=samples, tokens=tokens, flops=flops)
            self._work.clear()
            self._steps += 1

    def tag(self, tag: str) -> None:
        """``tag`` happens in this step."""
        if self._profiler is not None:
            self._profiler.tag(tag)

    def end(self, error: BaseException | None = None) -> None:
        """The fit is over; ``error`` is what ended it, if anything did. Nothing happens if that was said before."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        if self._steps:
            _recorded[self._folder] += 1
        profiler.__exit__(None if error is None else type(error), error, None)

    def disable(self, reason: str) -> None:
        """Switch off for good, and say so once. Never raises."""
        self.off = True
        with suppress(Exception):
            recorder = attach.current() if self.active else None
            if recorder is None:
                sys.stderr.write(f"rankscope: the callback switched itself off ({reason}); training goes on\n")
            else:
                recorder.disable(reason)
        with suppress(Exception):
            self.end()


def _launched() -> RecorderSettings | None:
    """What the launcher of this process said, if there was one."""
    try:
        return from_environment(os.environ)
    except ValueError:
        return None  # a damaged variable; the recorder says so


def _said_by(launched: RecorderSettings) -> dict[str, Any]:
    """The launcher's settings as options of ``StepProfiler``."""
    said = {name: value for name, value in msgspec.structs.asdict(launched).items() if name in _OPTIONS.parameters}
    del said["run_dir"]
    if said.get("coordinates") is None:
        # The launcher cannot know those of a single rank.
        said.pop("coordinates", None)
    return said


def _total(values: tuple[Any, ...]) -> Any:
    """Their sum, unless one is not known."""
    return None if None in values else sum(values)


_H = TypeVar("_H", bound=Callable[..., None])


def harmless(hook: _H) -> _H:
    """A hook of a callback with a ``fit: FitRecording``; where it would raise, it switches that off and does nothing any more."""

    @wraps(hook)
    def safe(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.fit.off:
            return
        try:
            hook(self, *args, **kwargs)
        except Exception as error:
            if raised_by_a_signal_handler(error):
                raise
            # Whatever it is, training goes on.
            self.fit.disable(f"{type(error).__name__}: {error}")

    return cast("_H", safe)
