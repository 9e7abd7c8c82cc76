"""Putting a watcher together from what the command line says."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rankscope.alerts.deliver.delivery import Delivery
from rankscope.alerts.deliver.http import http_client
from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.deliver.outbox_command import outbox_file
from rankscope.alerts.deliver.outbox_file import OutboxError
from rankscope.alerts.deliver.receivers import Alertmanager, Webhook
from rankscope.alerts.deliver.sender import Sender
from rankscope.alerts.deliver.target import Target
from rankscope.alerts.output import Event, as_json, as_text, print_line
from rankscope.alerts.watch.following import Following
from rankscope.alerts.watch.ledger import Ledger
from rankscope.alerts.watch.state import default_state_file, hold, load_ledger, save_ledger
from rankscope.alerts.watch.watcher import Options, Watcher
from rankscope.analysis.engine import analyze

VALID_INTERVALS: Final = 4
"""A firing alert that is not posted again ends in Alertmanager after as many intervals, as with Prometheus."""
LEAST_INTERVAL_S: Final = 60.0
"""Shorter intervals count as this: an evaluation of a thousand ranks may take a minute."""

DRAIN_S: Final = 60.0
"""After a followed run has ended, deliveries that fail are tried again for this long; what is left then stays in the outbox."""
ONCE_DRAIN_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where alerts go and what they link to."""

    alertmanagers: tuple[str, ...] = ()
    targets: tuple[Target, ...] = ()
    dashboard: str | None = None
    runbooks: str | None = None

    def managers(self, *, interval_s: float, once: bool) -> list[Alertmanager]:
        """The Alertmanagers, each address once."""
        # Posted once, an alert is not renewed: it ends by Alertmanager's own resolve_timeout.
        valid_s = None if once else VALID_INTERVALS * max(LEAST_INTERVAL_S, interval_s)
        return [Alertmanager(url, http_client(url), valid_s=valid_s) for url in dict.fromkeys(self.alertmanagers)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """A watcher, and the sender that brings what it finds to the targets."""

    watcher: Watcher
    sender: Sender
    once: bool

    def finish(self) -> list[str]:
        """Deliver what is still outstanding, for a while; returns the names of those who could not be told."""
        patience = time.monotonic() + (ONCE_DRAIN_S if self.once else DRAIN_S)
        while True:
            undelivered = [*self.watcher.flush(), *self.sender.drain(0.2)]
            if not undelivered or time.monotonic() >= patience:
                return list(dict.fromkeys([*undelivered, *self.sender.lost()]))


def prepare(
    path: Path,
    *,
    addresses: Addresses,
    options: Options,
    state: Path | None,
    json_lines: bool,
) -> Watch:
    """A watcher over ``path`` that prints, delivers and remembers. Raises ``InputError`` for a state file it cannot use."""
    # One name for one folder, wherever the command was started: both the state file and the entries in it go by it.
    path = path.resolve()
    state = state or default_state_file(path)
    if not options.once:
        hold(state, path)
    ledger = load_ledger(state, report=_report)
    outbox = _outbox(state, addresses.targets, ledger)
    sender = Sender(outbox, addresses.targets, report=_report)
    managers = addresses.managers(interval_s=options.interval_s, once=options.once)
    webhooks = [Webhook(target, outbox, wake=sender.wake, external_url=addresses.dashboard or "") for target in addresses.targets]
    watcher = Watcher(
        path,
        analyse=analyze,
        follow=Following(),
        delivery=Delivery(managers=managers, receivers=webhooks, interval_s=options.interval_s, report=_report),
        ledger=ledger,
        options=replace(options, dashboard_url=addresses.dashboard, runbook_url=addresses.runbooks),
        report=_report,
        emit=_printer(as_json if json_lines else as_text, needed=not (managers or webhooks)),
        save=_saver(state),
    )
    return Watch(watcher=watcher, sender=sender, once=options.once)


def _outbox(state: Path, targets: tuple[Target, ...], ledger: Ledger) -> Outbox:
    """The outbox beside the state file. Where it cannot be had alerts go out all the same, from memory."""
    if not targets:
        return Outbox(None)
    try:
        outbox = Outbox(outbox_file(state), report=_report)
    except OutboxError as error:
        _report(f"{error}; alerts are sent, but what could not be delivered by the end is lost")
        return Outbox(None)
    if outbox.file.recovered:
        # What waited is not known any more: better some alerts told twice than none at all.
        for entry in ledger.entries:
            for target in targets:
                entry.told.pop(target.key, None)
    return outbox


def _report(line: str) -> None:
    print_line(f"rankscope: {' '.join(line.split())}", err=True)


def _printer(render: Callable[[Event], str], *, needed: bool) -> Callable[[Event], None]:
    """Prints events. Unless printing is ``needed``, because nobody else is told, a failure is mentioned once and no more."""
    failed: list[OSError] = []

    def emit(event: Event) -> None:
        error = print_line(render(event))
        if error is None:
            return
        if needed:
            raise error
        if not failed:
            _report(f"standard output cannot be written: {error.strerror or error}; alerts are delivered all the same")
            failed.append(error)

    return emit


def _saver(path: Path) -> Callable[[Ledger], None]:
    """Writes the ledger when it has changed; says once when that is not possible."""
    last: list[object] = [None]
    failed: list[str] = []

    def save(ledger: Ledger) -> None:
        import msgspec

        data = msgspec.json.encode(ledger)
        if data == last[0]:
            return
        try:
            save_ledger(path, ledger)
        except OSError as error:
            if not failed:
                failed.append(str(error))
                _report(f"{path}: the state cannot be kept: {error.strerror or error}; after a restart alerts may be sent again")
            return
        last[0] = data

    return save
