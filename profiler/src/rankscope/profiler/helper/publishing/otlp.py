"""Task of the helper to send every Nth step as a trace over OTLP, configured by the standard ``OTEL_*`` variables.

Threads of this task load the SDK and send everything, so a collector cannot delay the helper's other work.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from rankscope.base.errors import InputError, MissingError
from rankscope.profiler.helper.tasks import HelperContext, HelperTask
from rankscope.profiler.phases import PhaseInterval
from rankscope.runs.records import RankInfo, RunInfo, StepRecord

if TYPE_CHECKING:
    from rankscope.profiler.helper.publishing.otlp_sdk import StepTracer

_QueuedStep = tuple[StepRecord, Sequence[PhaseInterval]]

MAX_WAITING: Final = 256
"""Largest number of steps that wait for the SDK; beyond it the oldest are dropped. The SDK limits what waits for the collector
(``OTEL_BSP_…``)."""
FLUSH_SECONDS: Final = 3.0
"""Longest wait for the collector at the end."""


class OtlpTraces(HelperTask):
    """Task that selects the steps to send; all ranks select the same ones."""

    def __init__(self, context: HelperContext) -> None:
        self._context = context
        self._every_steps = context.handover.settings.otlp_every
        self._waiting: queue.Queue[_QueuedStep | None] = queue.Queue(MAX_WAITING)
        self._sender: StepSender | None = None

    def step(self, record: StepRecord, intervals: Sequence[PhaseInterval] = ()) -> None:
        """Queue the step if its number is a multiple of ``otlp_every``."""
        if self._every_steps and record.step % self._every_steps == 0:
            _put(self._waiting, (record, intervals))

    def tick(self) -> None:
        """Start sending once there is a step to send and the run's name and id are final."""
        if self._sender is None and not self._waiting.empty() and self._context.begun():
            self._sender = StepSender(self._waiting, self._context.run(), self._context.info(), self._report)

    def _report(self, message: str) -> None:
        # Problems mostly affect all ranks of a host, so one rank reports them.
        if not self._context.handover.rank.local_rank:
            self._context.report(message)

    def end(self, *, vanished: bool) -> None:  # noqa: ARG002  # the same for every end
        """Send the remaining steps, waiting at most ``FLUSH_SECONDS``."""
        self.tick()
        if self._sender is not None:
            self._sender.end(FLUSH_SECONDS)


class StepSender:
    """Thread that passes the steps in ``waiting`` to the SDK."""

    def __init__(
        self, waiting: queue.Queue[_QueuedStep | None], run: RunInfo, rank: RankInfo, report: Callable[[str], None]
    ) -> None:
        self._waiting = waiting
        self._run_info = run
        self._rank = rank
        self._report = report
        self._tracer: StepTracer | None = None
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    def end(self, seconds: float) -> None:
        """Send the remaining steps within ``seconds``; do not try if the last ones were not accepted."""
        _put(self._waiting, None)
        if self._tracer is not None and self._tracer.accepted is False:
            return
        self._thread.join(seconds)
        if self._thread.is_alive() and self._tracer is not None and self._tracer.accepted is not False:
            reason = f" ({self._tracer.warning})" if self._tracer.warning else ""
            self._report(f"the last traces were not accepted over OTLP within {seconds:g} s{reason}")

    def _run(self) -> None:
        if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            return
        try:
            from rankscope.profiler.helper.publishing.otlp_sdk import StepTracer

            self._tracer = StepTracer(self._run_info, self._rank, self._report)
            while (step := self._waiting.get()) is not None:
                self._tracer.add(*step)
            self._tracer.close()
        except ImportError as error:
            self._report(f"no traces over OTLP: they need {error.name}: pip install 'rankscope[otlp]'")
        except (InputError, MissingError) as error:
            self._report(f"no traces over OTLP: {error}")
        except Exception as error:  # noqa: BLE001  # no error may stop the records
            self._report(f"no more traces over OTLP: {type(error).__name__}: {error}")


def _put(waiting: queue.Queue[_QueuedStep | None], step: _QueuedStep | None) -> None:
    while True:
        try:
            waiting.put_nowait(step)
        except queue.Full:
            with suppress(queue.Empty):
                waiting.get_nowait()
        else:
            return
