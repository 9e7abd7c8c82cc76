"""Construction of a watcher from the command line."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

import msgspec

from rankscope.alerts.deliver.notifiers import Alertmanager, Webhook
from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.deliver.sender import REPLACE_S, Sender
from rankscope.alerts.deliver.target_file import Destinations
from rankscope.alerts.output import Event, as_json, as_text, print_line
from rankscope.alerts.store.database import AlertStore, StoreError
from rankscope.alerts.store.folders import watcher_state
from rankscope.alerts.watch.delivery import Delivery
from rankscope.alerts.watch.followed_runs import FollowedRuns
from rankscope.alerts.watch.ledger import AlertLedger, load_ledger, save_ledger
from rankscope.alerts.watch.watcher import Watcher
from rankscope.alerts.watch.watcher_settings import WatcherSettings
from rankscope.analysis.engine import analyze
from rankscope.base.errors import InputError
from rankscope.base.problems import ProblemLog

logger = logging.getLogger(__name__)

VALID_INTERVALS: Final = 4
"""Intervals after which a firing alert that is not posted again ends in Alertmanager, as with Prometheus."""
LEAST_INTERVAL_S: Final = 60.0
"""Shortest interval in that calculation: an evaluation of a thousand ranks may take a minute."""

DRAIN_S: Final = 60.0
"""Time for which deliveries are retried after a followed run has ended; the rest stays in the outbox."""
ONCE_DRAIN_S: Final = 10.0


class RunningWatcher:
    """A watcher with its store and the sender that delivers its alerts to the targets."""

    def __init__(
        self, *, watcher: Watcher, delivery: Delivery, store: AlertStore, destinations: Destinations, options: WatcherSettings
    ) -> None:
        self.watcher = watcher
        self.once = options.once
        self._delivery = delivery
        self._store = store
        self._outbox = Outbox(store)
        self._options = options
        self.sender = self._connect(destinations)

    def change(self, destinations: Destinations) -> None:
        """Deliver to other destinations from now on. What an Alertmanager gets is posted to all of them again."""
        self.sender.stop(REPLACE_S)
        self.sender = self._connect(destinations)
        self.sender.start()

    def finish(self, *, stopping: Callable[[], bool] = lambda: False) -> list[str]:
        """Deliver outstanding alerts for a limited time; return the names of the receivers without a delivery."""
        deadline = time.monotonic() + (ONCE_DRAIN_S if self.once else DRAIN_S)
        while True:
            undelivered = [*self.watcher.flush(), *self.sender.drain(0.2)]
            if not undelivered or time.monotonic() >= deadline or stopping():
                return list(dict.fromkeys([*undelivered, *self.sender.lost()]))

    def close(self) -> None:
        """Stop sending, and release the store."""
        self.sender.stop()
        self._store.close()

    def _connect(self, destinations: Destinations) -> Sender:
        options = self._options
        sender = Sender(self._outbox, destinations.targets, report=logger.warning)
        # With ``once`` an alert is not posted again: it ends by Alertmanager's own resolve_timeout.
        valid_s = None if options.once else VALID_INTERVALS * max(LEAST_INTERVAL_S, options.interval_s)
        self._delivery.deliver_to(
            alertmanagers=[Alertmanager(endpoint, valid_s=valid_s) for endpoint in destinations.alertmanagers],
            webhooks=[
                Webhook(target, self._outbox, wake=sender.wake, external_url=options.dashboard_url or "")
                for target in destinations.targets
            ],
        )
        return sender


def prepare(
    path: Path,
    *,
    destinations: Destinations,
    options: WatcherSettings,
    state: Path | None,
    json_lines: bool,
    interruptible: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> RunningWatcher:
    """Build a watcher of ``path`` with output, delivery and store. Raises ``InputError`` for an unusable state folder.

    An analysis runs within ``interruptible``.
    """
    # The absolute path identifies the state folder and its entries, independent of the current directory.
    path = path.resolve()
    store = _store(state or watcher_state(path), path, once=options.once)
    delivery = Delivery(interval_s=options.interval_s, report=logger.warning)
    only_output = not (destinations.targets or destinations.alertmanagers)
    watcher = Watcher(
        path,
        analyse=analyze,
        follow=FollowedRuns(),
        delivery=delivery,
        ledger=load_ledger(store),
        options=options,
        report=logger.warning,
        emit=_printer(as_json if json_lines else as_text, needed=only_output),
        save=_saver(store),
        interruptible=interruptible,
    )
    watcher.page.store_id = store.id
    return RunningWatcher(watcher=watcher, delivery=delivery, store=store, destinations=destinations, options=options)


def _store(folder: Path, watched: Path, *, once: bool) -> AlertStore:
    """Open the store in ``folder``; if that fails, fall back to a store in memory so that alerts are still delivered.

    Raises ``InputError`` if another watcher holds the store, except with ``once``, which shares it.
    """
    try:
        store = AlertStore(folder, report=logger.warning)
        if once or store.hold():
            return store
    except StoreError as error:
        logger.warning(
            "%s; alerts are sent, but undelivered ones are lost at the end, and may be sent again after a restart", error
        )
        return AlertStore(None)
    store.close()
    raise InputError(watched, f"another watcher with the state folder {folder} follows it; --state names another folder")


def _printer(render: Callable[[Event], str], *, needed: bool) -> Callable[[Event], None]:
    """Return a function that prints events.

    ``needed``: printing is the only output, so a failure raises ``OSError``; otherwise the first failure is reported.
    """
    problems = ProblemLog[str](logger.warning, each_reason=False)

    def emit(event: Event) -> None:
        error = print_line(render(event))
        if error is not None and needed:
            raise error
        if error is not None:
            problems.report(f"standard output cannot be written: {error.strerror or error}; alerts are delivered all the same")

    return emit


def _saver(store: AlertStore) -> Callable[[AlertLedger], None]:
    """Return a function that stores a changed ledger and reports its first failure."""
    last: list[object] = [None]
    problems = ProblemLog[str](logger.warning, each_reason=False)

    def save(ledger: AlertLedger) -> None:
        data = msgspec.json.encode(ledger)
        if data == last[0]:
            return
        try:
            save_ledger(store, ledger)
        except StoreError as error:
            problems.report(f"{error}; after a restart alerts may be sent again")
            return
        last[0] = data

    return save
