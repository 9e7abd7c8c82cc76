"""Construction of a watcher from the command line."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from rankscope.alerts.deliver.http import http_client
from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.deliver.receivers import Alertmanager, Webhook
from rankscope.alerts.deliver.sender import Sender
from rankscope.alerts.deliver.targets import Target
from rankscope.alerts.output import Event, as_json, as_text, print_line, report_line
from rankscope.alerts.store.database import Store, StoreError
from rankscope.alerts.store.folders import watcher_state
from rankscope.alerts.watch.delivery import Delivery
from rankscope.alerts.watch.following import Following
from rankscope.alerts.watch.ledger import Ledger, load_ledger, save_ledger
from rankscope.alerts.watch.watcher import Options, Watcher
from rankscope.analysis.engine import analyze
from rankscope.base.errors import InputError

VALID_INTERVALS: Final = 4
"""Intervals after which a firing alert that is not posted again ends in Alertmanager, as with Prometheus."""
LEAST_INTERVAL_S: Final = 60.0
"""Shortest interval in that calculation: an evaluation of a thousand ranks may take a minute."""

DRAIN_S: Final = 60.0
"""Time for which deliveries are retried after a followed run has ended; the rest stays in the outbox."""
ONCE_DRAIN_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """A watcher, and the sender that delivers its alerts to the targets."""

    watcher: Watcher
    sender: Sender
    once: bool

    def finish(self) -> list[str]:
        """Deliver outstanding alerts for a limited time; return the names of the receivers without a delivery."""
        deadline = time.monotonic() + (ONCE_DRAIN_S if self.once else DRAIN_S)
        while True:
            undelivered = [*self.watcher.flush(), *self.sender.drain(0.2)]
            if not undelivered or time.monotonic() >= deadline:
                return list(dict.fromkeys([*undelivered, *self.sender.lost()]))


def prepare(
    path: Path,
    *,
    alertmanagers: Sequence[str],
    targets: Sequence[Target],
    options: Options,
    state: Path | None,
    json_lines: bool,
) -> Watch:
    """Build a watcher of ``path`` with output, delivery and store. Raises ``InputError`` for an unusable state folder."""
    # The absolute path identifies the state folder and its entries, independent of the current directory.
    path = path.resolve()
    store = _store(state or watcher_state(path), path, once=options.once)
    ledger = load_ledger(store)
    outbox = Outbox(store)
    sender = Sender(outbox, targets, report=report_line)
    # With ``once`` an alert is not posted again: it ends by Alertmanager's own resolve_timeout.
    valid_s = None if options.once else VALID_INTERVALS * max(LEAST_INTERVAL_S, options.interval_s)
    managers = [Alertmanager(url, http_client(url), valid_s=valid_s) for url in dict.fromkeys(alertmanagers)]
    webhooks = [Webhook(target, outbox, wake=sender.wake, external_url=options.dashboard_url or "") for target in targets]
    watcher = Watcher(
        path,
        analyse=analyze,
        follow=Following(),
        delivery=Delivery(managers=managers, receivers=webhooks, interval_s=options.interval_s, report=report_line),
        ledger=ledger,
        options=options,
        report=report_line,
        emit=_printer(as_json if json_lines else as_text, needed=not (managers or webhooks)),
        save=_saver(store),
    )
    return Watch(watcher=watcher, sender=sender, once=options.once)


def _store(folder: Path, watched: Path, *, once: bool) -> Store:
    """Open the store in ``folder``; if that fails, fall back to a store in memory so that alerts are still delivered.

    Raises ``InputError`` if another watcher holds the store, except with ``once``, which shares it.
    """
    try:
        store = Store(folder, report=report_line)
        if once or store.hold():
            return store
    except StoreError as error:
        report_line(f"{error}; alerts are sent, but undelivered ones are lost at the end, and may be sent again after a restart")
        return Store(None)
    store.close()
    raise InputError(watched, f"another watcher with the state folder {folder} follows it; --state names another folder")


def _printer(render: Callable[[Event], str], *, needed: bool) -> Callable[[Event], None]:
    """Return a function that prints events.

    ``needed``: printing is the only output, so a failure raises ``OSError``; otherwise the first failure is reported.
    """
    failed: list[OSError] = []

    def emit(event: Event) -> None:
        error = print_line(render(event))
        if error is None:
            return
        if needed:
            raise error
        if not failed:
            report_line(f"standard output cannot be written: {error.strerror or error}; alerts are delivered all the same")
            failed.append(error)

    return emit


def _saver(store: Store) -> Callable[[Ledger], None]:
    """Return a function that stores a changed ledger and reports its first failure."""
    last: list[object] = [None]
    failed: list[str] = []

    def save(ledger: Ledger) -> None:
        data = msgspec.json.encode(ledger)
        if data == last[0]:
            return
        try:
            save_ledger(store, ledger)
        except StoreError as error:
            if not failed:
                failed.append(str(error))
                report_line(f"{error}; after a restart alerts may be sent again")
            return
        last[0] = data

    return save
