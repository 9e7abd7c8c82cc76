"""The threads of a receiver that process accepted deliveries, for one configuration."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.deliver.sender import STOP_S, Sender
from rankscope.alerts.deliver.target_file import load_targets
from rankscope.alerts.receive.actions.action_runner import ActionRunner
from rankscope.alerts.receive.counters import Counters
from rankscope.alerts.receive.forwarding import Forwarding
from rankscope.alerts.receive.inbox import Inbox
from rankscope.alerts.receive.receiver_settings import ReceiverSettings
from rankscope.alerts.receive.verdicts.analyst import Analyst
from rankscope.alerts.receive.verdicts.known_runs import KnownRuns
from rankscope.alerts.receive.verdicts.late_verdicts import LateVerdicts
from rankscope.alerts.receive.worker import InboxWorker, WorkerSettings
from rankscope.base.options import parse_duration


class Processing:
    """Worker, action runner, analyst and sender. ``show`` takes a line about each finished action.

    Raises ``InputError`` for targets that cannot be used. Nothing runs before ``start``.
    """

    def __init__(
        self,
        chosen: ReceiverSettings,
        inbox: Inbox,
        outbox: Outbox,
        *,
        counters: Counters,
        show: Callable[[str], object],
        report: Callable[[str], object],
    ) -> None:
        receive = chosen.config.receive
        self._woken, wanted, self._stopping = threading.Event(), threading.Event(), threading.Event()
        self._events = (self._woken, wanted)
        within_s = parse_duration(receive.enrich_within, needs_unit=True)
        self._sender = None
        forwarding = None
        if chosen.config_file is not None and chosen.config.targets:
            targets = load_targets(chosen.config_file, absent=report)
            self._sender = Sender(outbox, targets, report=report)
            forwarding = Forwarding(
                outbox,
                targets={target.name: target.most_alerts for target in targets},
                routes=chosen.config.routes,
                external_url=chosen.dashboard_url or "",
                wake=self._sender.wake,
            )
        self._analyst = Analyst(KnownRuns(chosen.runs), waits_s=within_s, ready=self._woken.set) if chosen.runs else None
        late = None
        if self._analyst is not None and forwarding is not None:
            late = LateVerdicts(inbox, self._analyst, forwarding, counters=counters, dashboard_url=chosen.dashboard_url)
        worker = InboxWorker(
            inbox,
            settings=WorkerSettings(
                repeat_after_s=parse_duration(receive.repeat_after, needs_unit=True),
                enrich_within_s=within_s,
                dashboard_url=chosen.dashboard_url,
                rules=chosen.config.actions,
            ),
            counters=counters,
            report=report,
            forwarding=forwarding,
            analyst=self._analyst,
            late=late,
            on_action=wanted.set,
        )
        runs = [("worker", worker.run, self._woken)]
        if chosen.config.actions:
            runner = ActionRunner(
                inbox,
                runs=KnownRuns(chosen.runs),
                rules=chosen.config.actions,
                counters=counters,
                show=show,
                report=report,
                forwarding=forwarding,
                dashboard_url=chosen.dashboard_url,
            )
            runs.append(("actions", runner.run, wanted))
        self._threads = [
            threading.Thread(target=run, args=(woken, self._stopping), name=name, daemon=True) for name, run, woken in runs
        ]

    def start(self) -> None:
        """Start the threads."""
        if self._sender is not None:
            self._sender.start()
        if self._analyst is not None:
            self._analyst.start()
        for thread in self._threads:
            thread.start()
        self.wake()

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Stop the threads, waiting up to ``timeout_s`` each for work in progress."""
        self._stopping.set()
        for event in self._events:
            event.set()
        if self._analyst is not None:
            self._analyst.stop()
        for thread in self._threads:
            thread.join(timeout_s)
        if self._sender is not None:
            self._sender.stop(timeout_s)

    def wake(self) -> None:
        """Announce an accepted delivery."""
        self._woken.set()
