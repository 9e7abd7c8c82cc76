"""Recording in one line, from inside the script."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import torch  # noqa: F401  # before attach, which is what the launcher imports at this moment

from rankscope.profiler import attach
from rankscope.profiler.recorder import Recorder
from rankscope.profiler.ring import End
from rankscope.profiler.settings import WINDOW_FIRST, WINDOW_STEPS, RecorderSettings

_T = TypeVar("_T")


class StepProfiler:
    """Records the steps between entering and leaving, on every rank that enters.

    ::

        with StepProfiler(run_dir="runs/my-run") as prof:
            for batch in prof.data(loader):
                ...
                prof.step(samples=len(batch))

    Steps end where ``step`` is called; phases and waiting are seen as without it. Under ``rankscope run`` the launcher's run
    directory and settings hold instead of these for the first one; a rank is in a run once, so a later one records where these
    say. One entered while another recording goes on adds nothing to it. Like all of the recorder it never raises: what goes wrong
    is said once on stderr and training goes on.

    ``run_dir`` must be the same folder on all ranks and hold no earlier run of this script.
    ``window_*``: profile ``window_steps`` steps from step ``window_first``, then every ``window_every`` (0: once;
    ``None``: as often as the budget allows).
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        *,
        name: str | None = None,
        spool_dir: str | os.PathLike[str] | None = None,
        window_first: int = WINDOW_FIRST,
        window_every: int | None = None,
        window_steps: int = WINDOW_STEPS,
        keep_traces: int = 0,
        simulated: bool = False,
        price_per_gpu_hour: float | None = None,
        currency: str | None = None,
    ) -> None:
        started = time.time_ns()
        name = name or Path(sys.argv[0]).stem or "run"
        self._settings = RecorderSettings(
            run_dir=str(Path(run_dir).absolute()),
            # Every rank makes one up; the run keeps that of the rank that creates it.
            run_id=f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}",
            name=name,
            start_unix_ns=started,
            spool_dir=None if spool_dir is None else str(Path(spool_dir).absolute()),
            window_first=window_first,
            window_every=window_every,
            window_steps=window_steps,
            keep_traces=keep_traces,
            simulated=simulated,
            price_per_gpu_hour=price_per_gpu_hour,
            currency=currency,
        )
        self._recorder: Recorder | None = None

    def __enter__(self) -> Self:
        launched = attach.current()
        if launched is not None and not launched.off and launched.session is None:
            launched.explicit = True
            self._recorder = launched
        elif launched is None or launched.off:
            # Kineto prints two lines per window otherwise.
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")
            recorder = Recorder(self._settings, explicit=True)
            try:
                attach.use(recorder)
                attach.adopt_existing(recorder)
            except RuntimeError as error:
                recorder.disable(str(error))
            self._recorder = recorder
        if self._recorder is not None:
            self._recorder.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._recorder is not None:
            self._recorder.close(End.EXIT if error is None else End.CRASH)

    def data(self, loader: Iterable[_T]) -> Iterable[_T]:
        """The batches of ``loader``, any iterable; the time each takes is the step's data phase."""
        return loader if self._recorder is None else _counted(loader, self._recorder)

    def step(self, *, samples: int | None = None, tokens: int | None = None) -> None:
        """The step ends here.

        ``samples`` and ``tokens`` of this rank's batch, where you know better than the first tensor's first dimension.
        """
        if self._recorder is not None:
            self._recorder.step(samples, tokens)

    def tag(self, tag: str) -> None:
        """Note what happens in this step: ``"eval"``, ``"checkpoint"``, or a word of your own."""
        if self._recorder is not None:
            self._recorder.tag(tag)


def _counted(loader: Iterable[_T], recorder: Recorder) -> Iterator[_T]:
    """The batches of ``loader``, with the time each took reported."""
    iterator = iter(loader)
    while True:
        reported = recorder.enter_data()
        try:
            batch = next(iterator)
        except StopIteration:
            if reported:
                recorder.leave_data()
            return
        except BaseException:
            if reported:
                recorder.leave_data()
            raise
        if reported:
            recorder.leave_data(batch)
        yield batch
