"""Putting a watcher together from what the command line says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import httpx
import stamina.instrumentation

from rankscope.alerts.alertmanager import Alertmanager
from rankscope.alerts.delivery import Delivery, Receiver
from rankscope.alerts.events import Event, as_json, as_text
from rankscope.alerts.following import Following
from rankscope.alerts.ledger import Ledger
from rankscope.alerts.post import http_client
from rankscope.alerts.printing import print_line
from rankscope.alerts.state import default_state_file, hold, load_ledger, save_ledger
from rankscope.alerts.watcher import Options, Watcher
from rankscope.alerts.webhook import Webhook
from rankscope.analysis.engine import analyze

RESEND_S: Final = 60.0
"""A firing alert is sent to Alertmanager again after this long."""
VALID_RESENDS: Final = 4
"""It stays valid for as many resends, so that a few lost ones do not resolve it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where alerts go and what they link to."""

    alertmanagers: tuple[str, ...] = ()
    webhooks: tuple[str, ...] = ()
    dashboard: str | None = None
    runbooks: str = "runbooks"

    def receivers(self, client: httpx.Client, *, interval_s: float, once: bool) -> list[Receiver]:
        """The receivers, each address once."""
        resend_s = max(RESEND_S, interval_s)
        # Sent once, nobody renews it: its end is then up to Alertmanager's own resolve_timeout.
        valid_s = None if once else VALID_RESENDS * resend_s
        return [
            *(Alertmanager(url, client, resend_after_s=resend_s, valid_s=valid_s) for url in dict.fromkeys(self.alertmanagers)),
            *(Webhook(url, client, external_url=self.dashboard or "") for url in dict.fromkeys(self.webhooks)),
        ]


def prepare(
    path: Path,
    *,
    addresses: Addresses,
    options: Options,
    state: Path | None,
    json_lines: bool,
) -> Watcher:
    """A watcher over ``path`` that prints, delivers and remembers. Raises ``InputError`` for a state file it cannot use."""
    # One name for one folder, wherever the command was started: both the state file and the entries in it go by it.
    path = path.resolve()
    # A retry is not worth a log line, and the libraries' own lines would quote addresses.
    stamina.instrumentation.set_on_retry_hooks([])
    state = state or default_state_file(path)
    if not options.once:
        hold(state, path)
    receivers = addresses.receivers(http_client(), interval_s=options.interval_s, once=options.once)
    return Watcher(
        path,
        analyse=analyze,
        follow=Following(),
        delivery=Delivery(receivers, retry_after_s=options.interval_s, report=_report),
        ledger=load_ledger(state, report=_report),
        options=replace(options, dashboard_url=addresses.dashboard, runbook_url=addresses.runbooks),
        report=_report,
        emit=_printer(as_json if json_lines else as_text, needed=not receivers),
        save=_saver(state),
    )


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
