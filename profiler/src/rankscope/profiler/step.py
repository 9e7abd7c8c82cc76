"""Recording from inside the training script, in one line."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sized
from inspect import Parameter, Signature
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

import msgspec
import torch  # noqa: F401  # before attach, as under the launcher, which imports attach after torch

from rankscope.profiler.rank.guard import print_not_recorded
from rankscope.profiler.rank.recorder import StepRecorder
from rankscope.profiler.rank.wrappers import attach
from rankscope.profiler.rank.wrappers.process_end import end_of
from rankscope.profiler.settings import BUDGET, RecorderSettings, RecordingOptions, as_share, default_spool_dir

_T = TypeVar("_T")
_COPY: Final = "h2d"
"""Name of the section that is also the phase of this name."""


def _signature() -> Signature:
    """Return the signature of ``StepProfiler`` with every option by name, for ``help()`` and editors."""
    options = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in msgspec.structs.fields(RecordingOptions)
    ]
    return Signature(
        [Parameter("run_dir", Parameter.POSITIONAL_OR_KEYWORD), Parameter("name", Parameter.KEYWORD_ONLY, default=None), *options]
    )


def _settings(
    run_dir: str | os.PathLike[str],
    name: str | None,
    coordinates: str | Mapping[str, int] | None,
    options: dict[str, Any],
) -> RecorderSettings:
    """Return the settings of these arguments. Raises ``ValueError`` or ``TypeError`` for one that does not fit."""
    name = name or Path(sys.argv[0]).stem or "run"
    spool = options.get("spool_dir") or default_spool_dir()
    values: dict[str, object] = options | {
        "run_dir": _folder("run_dir", run_dir),
        # Every rank proposes an id; the run keeps that of the rank that creates it.
        "run_id": f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}",
        "name": name,
        "start_unix_ns": time.time_ns(),
        "spool_dir": None if spool is None else _folder("spool_dir", spool),
        "budget": as_share(options.get("budget", BUDGET)),
    }
    # The constructor would not check the types.
    settings = msgspec.convert(values, RecorderSettings).with_overrides(os.environ)
    place = _as_text(coordinates)
    return settings if place is None else msgspec.structs.replace(settings, coordinates=place)


def _folder(option: str, path: str | os.PathLike[str]) -> str:
    """Return the absolute path. Raises ``ValueError`` if no folder can have this name, or JSON cannot hold it."""
    name = os.fspath(path)
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{option} is {name!r}: the name is not UTF-8") from error
    if not name or "\0" in name:
        raise ValueError(f"{option} is {name!r}: no folder has this name")
    return str(Path(name).absolute())


class StepSection:
    """Named part of a step; see ``StepProfiler.section``. Exceptions pass through it."""

    __slots__ = ("_name", "_recorder")

    def __init__(self, recorder: StepRecorder | None, name: str) -> None:
        self._recorder = recorder
        self._name = name

    def __enter__(self) -> Self:
        if self._recorder is not None:
            self._recorder.enter_section(self._name)
            if self._name == _COPY:
                self._recorder.enter_copy()
        return self

    def __exit__(self, *_: object) -> None:
        if self._recorder is not None:
            if self._name == _COPY:
                self._recorder.leave_copy()
            self._recorder.leave_section(self._name)


class StepProfiler:
    """Context manager that records the steps inside it, on every rank that enters it.

    ::

        with StepProfiler(run_dir="runs/my-run") as prof:
            for batch in prof.data(loader):
                ...
                prof.step(samples=len(batch))

    Steps end where ``step`` is called; phases and waiting are detected as without it. Under ``rankscope run`` the launcher's run
    directory and settings replace the arguments of the first ``StepProfiler``. A rank is in a run only once, so a later
    ``StepProfiler`` uses its own arguments. One that is entered while another recording is active adds nothing to it. Errors
    are reported once on stderr, and training goes on. An invalid value disables recording; an unknown option raises.

    ``run_dir`` must be the same folder on all ranks and hold no earlier run of this script.
    ``coordinates``: this rank's place in the parallel layout, ``{"dp": 3, "tp": 0}`` or ``"dp=3,tp=0"``, where the process groups
    do not show it; also used under ``rankscope run``.
    ``options``: the fields of ``rankscope.profiler.settings.RecordingOptions``; ``budget`` may also be text, ``"1%"``. The
    default of ``spool_dir`` is ``/run/rankscope/spool``, if it exists and is writable.

    Raises ``TypeError`` for an unknown option.
    """

    __signature__ = _signature()

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        *,
        name: str | None = None,
        coordinates: str | Mapping[str, int] | None = None,
        **options: Any,
    ) -> None:
        unknown = options.keys() - set(RecordingOptions.__struct_fields__)
        if unknown:
            raise TypeError(
                f"StepProfiler has no option {', '.join(sorted(unknown))}; it has {', '.join(RecordingOptions.__struct_fields__)}"
            )
        self._recorder: StepRecorder | None = None
        self._settings: RecorderSettings | None = None
        self._not_recorded_because = ""
        try:
            self._settings = _settings(run_dir, name, coordinates, options)
        except Exception as error:  # noqa: BLE001  # no error may stop training
            self._not_recorded_because = str(error) or type(error).__name__

    def __enter__(self) -> Self:
        launched, current = attach.take_launched(), attach.current()
        if launched is not None:
            launched.explicit = True
            if self._settings is not None and self._settings.coordinates is not None:
                # The launcher's coordinates are the same for all ranks.
                launched.settings = msgspec.structs.replace(launched.settings, coordinates=self._settings.coordinates)
            self._recorder = launched
        elif self._settings is None:
            print_not_recorded(self._not_recorded_because)
        elif current is None or current.off:
            # Otherwise Kineto prints two lines per window.
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")
            self._attach(self._settings)
        if self._recorder is not None:
            self._recorder.begin()
        return self

    def _attach(self, settings: RecorderSettings) -> None:
        try:
            self._recorder = StepRecorder(settings, explicit=True)
            attach.use(self._recorder)
            attach.adopt_existing(self._recorder)
        except Exception as error:  # noqa: BLE001  # no error may stop training
            reason = str(error) or type(error).__name__
            if self._recorder is not None:
                self._recorder.disable(reason)
            else:
                print_not_recorded(reason)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._recorder is not None:
            self._recorder.close(end_of(error))

    def data(self, loader: Iterable[_T]) -> Iterable[_T]:
        """Return the batches of ``loader``, any iterable; the time each takes is the step's data phase."""
        return (_SizedBatches if hasattr(loader, "__len__") else _Batches)(loader, self._recorder)

    def step(self, *, samples: int | None = None, tokens: int | None = None, flops: float | None = None) -> None:
        """End the step.

        ``samples`` and ``tokens``: size of this rank's batch, where it differs from the first tensor's first dimension.
        ``flops``: floating-point operations that this rank computed in the step. Pass plain numbers: a tensor on a device would
        have to be waited for, and is not recorded.
        """
        if self._recorder is not None:
            if get_ident() != self._recorder.thread:
                self._recorder.claim()
            self._recorder.step(samples, tokens, flops)

    def section(self, name: str) -> StepSection:
        """Measure a section: ``with prof.section("loss"): …`` adds its time to the step's record under this name.

        Sections may be nested. A step has at most ten names, each of at most 32 bytes. The section ``h2d`` is the phase of that
        name: copying the batch to the device.
        """
        return StepSection(self._recorder, name)

    def metric(self, name: str, value: float) -> None:
        """Record a number of the script's own in this step, such as its loss: ``prof.metric("loss", loss.item())``.

        The pages show it beside the step times. A step has at most six names, each of at most 32 bytes. Pass plain numbers: a
        tensor, like a number that is not finite, is not recorded. One rank is enough.
        """
        if self._recorder is not None:
            self._recorder.metric(name, value)

    def tag(self, tag: str) -> None:
        """Tag this step with an activity in it: ``"eval"``, ``"checkpoint"``, or a word of your own."""
        if self._recorder is not None:
            self._recorder.tag(tag)


def _as_text(coordinates: str | Mapping[str, int] | None) -> str | None:
    if coordinates is None or isinstance(coordinates, str):
        return coordinates
    if not isinstance(coordinates, Mapping):
        raise TypeError(f"coordinates is {coordinates!r}: it must be like {{'dp': 3, 'tp': 0}} or 'dp=3,tp=0'")
    return ",".join(f"{name}={place}" for name, place in coordinates.items())


class _Batches(Iterable[_T]):
    """Result of ``data``: the batches of ``loader``, iterable once per epoch, with the time of each reported."""

    def __init__(self, loader: Iterable[_T], recorder: StepRecorder | None) -> None:
        self._loader = loader
        self._recorder = recorder

    def __iter__(self) -> Iterator[_T]:
        return _BatchIterator(iter(self._loader), self._recorder)


class _SizedBatches(_Batches[_T]):
    """Batches of a loader that has a length."""

    def __len__(self) -> int:
        return len(cast("Sized", self._loader))


class _BatchIterator(Iterator[_T]):
    """Iterator that reports the time of each batch and keeps no reference, so that the script controls a batch's lifetime."""

    def __init__(self, iterator: Iterator[_T], recorder: StepRecorder | None) -> None:
        self._iterator = iterator
        self._recorder = recorder

    def __next__(self) -> _T:
        if self._recorder is None or not self._recorder.enter_data():
            return next(self._iterator)
        batch: _T | None = None
        try:
            batch = next(self._iterator)
        finally:
            self._recorder.leave_data(batch)
        return batch
