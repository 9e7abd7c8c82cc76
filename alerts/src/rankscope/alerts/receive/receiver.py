"""A receiver from its settings: the application, the threads that process deliveries, and their replacement at SIGHUP."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import click

from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.deliver.sender import REPLACE_S
from rankscope.alerts.receive.config import unknown_alerts
from rankscope.alerts.receive.counters import Counters
from rankscope.alerts.receive.inbox import Inbox
from rankscope.alerts.receive.processing import Processing
from rankscope.alerts.receive.receiver_settings import ReceiverSettings, accepted_credentials
from rankscope.alerts.receive.verdicts.known_runs import unreadable_roots
from rankscope.alerts.receive.web.app import ReceiverApp
from rankscope.alerts.receive.web.server import serve_app
from rankscope.alerts.store.database import AlertStore, StoreError
from rankscope.base.errors import InputError, RankscopeError
from rankscope.base.followed_files import ReloadThread
from rankscope.base.http import host_port, open_listener
from rankscope.base.line_writer import LineWriter
from rankscope.runs.decoders import make_decoders

logger = logging.getLogger(__name__)


class Receiver:
    """A receiver. ``read_again`` returns its settings after a SIGHUP.

    Raises ``InputError`` and usage errors of click for settings that cannot be used.
    """

    def __init__(self, chosen: ReceiverSettings, *, read_again: Callable[[], ReceiverSettings]) -> None:
        self._chosen = chosen
        self._read_again = read_again
        self._credentials = accepted_credentials(chosen, report=logger.warning)
        self._counters = Counters()
        self._replacing = threading.Lock()
        self._stopped = False
        self._shown = LineWriter(
            sys.stdout.fileno(), dropped=lambda count: f"… {count} lines were dropped: they came faster than they were read"
        )

    def serve(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises ``InputError``."""
        chosen = self._chosen
        host, port = chosen.listen
        # Until the server installs its handler: a reload must not end a receiver that is starting.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with ExitStack() as stack:
            stack.callback(self._shown.flush)
            _report_doubts(chosen)
            store = stack.enter_context(self._store())
            self._inbox, self._outbox = Inbox(store), Outbox(store)
            processing = self._processing(chosen)
            if chosen.out is not None:
                _check_out(chosen.out)
            sock = open_listener(host, port)
            make_decoders()
            processing.start()
            self._current = processing
            # Exit callbacks run in reverse: the threads end before the files are closed.
            stack.callback(self._stop)
            self._app = ReceiverApp(
                self._inbox,
                show=self._shown.write,
                report=logger.warning,
                out=chosen.out,
                credentials=self._credentials,
                counters=self._counters,
                accepted=self._wake,
                outbox=self._outbox,
            )
            scheme = "http" if chosen.certificate is None else "https"
            address = f"{scheme}://{host_port(host, sock.getsockname()[1])}/webhook"
            serve_app(
                self._app,
                sock,
                certificate=chosen.certificate,
                report=logger.warning,
                begins=lambda: logger.info("listening on %s", address),
                reload=ReloadThread(self._reload).request,
            )

    def _wake(self) -> None:
        self._current.wake()

    def _stop(self) -> None:
        with self._replacing:
            self._stopped = True
            self._current.stop()

    def _processing(self, chosen: ReceiverSettings) -> Processing:
        return Processing(
            chosen, self._inbox, self._outbox, counters=self._counters, show=self._shown.write, report=logger.warning
        )

    def _reload(self) -> None:
        """Read the settings again, and apply those that need no restart. An unusable file changes nothing."""
        try:
            chosen = self._read_again()
            credentials = accepted_credentials(chosen, report=logger.warning)
            processing = self._processing(chosen)
        except (RankscopeError, click.ClickException) as error:
            self._app.reloaded = False
            logger.warning("the configuration stays as it was: %s", error)
            return
        except Exception:
            self._app.reloaded = False
            logger.exception("internal fault: the configuration stays as it was")
            return
        _report_doubts(chosen)
        for name in self._chosen.needing_restart(chosen):
            logger.warning("%s has changed, which needs a restart", name)
        with self._replacing:
            if self._stopped:
                return
            # Deliveries that arrive meanwhile are stored, and processed by the new threads.
            self._current.stop(REPLACE_S)
            processing.start()
            self._current, self._app.credentials, self._app.reloaded = processing, credentials, True
        logger.info("the configuration was read again")

    def _store(self) -> AlertStore:
        state = self._chosen.state
        try:
            store = AlertStore(state, report=logger.warning)
            if store.hold():
                return store
        except StoreError as error:
            raise InputError(state or "the store", f"{error}; choose another folder with --state") from error
        store.close()
        raise InputError(state or "the store", "another receiver or watcher uses this folder; choose another with --state")


def _check_out(out: Path) -> None:
    """Open the file of deliveries for appending, as each delivery does. Raises ``InputError``."""
    try:
        # Without waiting: a FIFO that no process reads would block the start, and then every delivery.
        os.close(os.open(out, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666))
    except OSError as error:
        raise InputError(out, f"cannot be written: {error.strerror or error}") from error


def _report_doubts(chosen: ReceiverSettings) -> None:
    for line in unknown_alerts(chosen.config):
        logger.warning("%s: %s", chosen.config_file, line)
    for root, reason in unreadable_roots(chosen.runs).items():
        logger.warning("%s: cannot look for runs here: %s; retried with every alert", root, reason)
