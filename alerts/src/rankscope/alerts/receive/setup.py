"""Construction of a receiver from its file and the command line."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.deliver.signing import SecretError, SecretPlace, parse_secret
from rankscope.alerts.output import print_line, report_line
from rankscope.alerts.receive.actor import Actor
from rankscope.alerts.receive.analyst import Analyst
from rankscope.alerts.receive.app import ReceiverApp
from rankscope.alerts.receive.authentication import UNGUESSABLE, Credentials, RotatedSecret
from rankscope.alerts.receive.config import ReceiverConfig, ReceiveSection, load_config, unknown_alerts
from rankscope.alerts.receive.counters import Counters, LineQueue
from rankscope.alerts.receive.forwarding import Forwarding, LateVerdicts
from rankscope.alerts.receive.inbox import Inbox
from rankscope.alerts.receive.known_runs import KnownRuns, absent
from rankscope.alerts.receive.server import serve as serve_app
from rankscope.alerts.receive.worker import Policy, Worker
from rankscope.alerts.store.database import Store, StoreError
from rankscope.alerts.store.folders import receiver_state
from rankscope.alerts.toml_file import duration
from rankscope.base.errors import InputError
from rankscope.base.http import host_port, is_loopback, open_listener
from rankscope.base.options import ListenAddress
from rankscope.runs.decoders import make_decoders

DEFAULT_LISTEN: Final = "127.0.0.1:9099"
STOP_S: Final = 10.0
"""Time for work in progress at the end; the rest stays in the inbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a receiver, from its file and the command line."""

    config: ReceiverConfig
    config_file: Path | None
    folder: Path
    """Base of relative paths in the file."""
    listen: tuple[str, int]
    runs: tuple[Path, ...]
    dashboard_url: str | None
    state: Path | None
    """``None`` keeps the store in memory."""
    out: Path | None

    @property
    def certificate(self) -> tuple[Path, Path] | None:
        """Files of the certificate and its key; ``None`` without TLS."""
        receive = self.config.receive
        if receive.tls_cert is None or receive.tls_key is None:
            return None
        return self.folder / receive.tls_cert, self.folder / receive.tls_key


def settings(
    file: Path | None,
    *,
    listen: tuple[str, int] | None,
    runs: Sequence[Path],
    dashboard_url: str | None,
    state: Path | None,
    out: Path | None,
) -> Settings:
    """Combine the file and the command line, which takes precedence. Raises ``InputError``, and usage errors of click."""
    config = ReceiverConfig() if file is None else load_config(file)
    receive = config.receive
    folder = Path() if file is None else file.parent
    folders = tuple(runs) or tuple(folder / root for root in receive.runs)
    for root in folders:
        try:
            os.scandir(root).close()
        except NotADirectoryError as error:
            raise InputError(root, f"cannot look for runs here: {error.strerror}") from error
        except OSError:  # a file server may come back; other alerts must be delivered meanwhile
            pass
    if config.actions and not folders:
        raise click.UsageError("actions need runs: name folders of runs with --runs")
    if state is None and file is not None:
        state = receiver_state() if receive.state is None else folder / receive.state
    return Settings(
        config=config,
        config_file=file,
        folder=folder,
        listen=listen or ListenAddress().convert(receive.listen or DEFAULT_LISTEN, None, None),
        runs=folders,
        dashboard_url=dashboard_url or receive.dashboard_url,
        state=state,
        out=out,
    )


class Receiver:
    """A receiver: the application, and the threads that process accepted deliveries."""

    def __init__(self, chosen: Settings) -> None:
        self._chosen = chosen
        self._show, self._report = LineQueue(print_line), LineQueue(report_line)
        self._counters = Counters()
        self._credentials = load_credentials(chosen.config.receive, folder=chosen.folder, report=self._report)
        host, _ = chosen.listen
        if not self._credentials.any and not is_loopback(host):
            raise click.UsageError(
                f"{host} can be reached from other machines, where anyone could send and read alerts; set credentials in "
                "[receive] of --config: bearer, basic, webhook_secrets or grafana_secrets"
            )

    def serve(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises ``InputError``."""
        chosen = self._chosen
        host, port = chosen.listen
        with ExitStack() as stack:
            for lines in (self._show, self._report):
                stack.callback(lines.close)
            for line in unknown_alerts(chosen.config):
                self._report(f"{chosen.config_file}: {line}")
            for where in self._credentials.guessable:
                short = f"fewer than {UNGUESSABLE} characters"
                self._report(f"{where}: {short}: refused while an address that it comes from is blocked for failed attempts")
            for root, reason in absent(chosen.runs).items():
                self._report(f"{root}: cannot look for runs here: {reason}; retried with every alert")
            store = stack.enter_context(self._store())
            inbox, outbox = Inbox(store), Outbox(store)
            forwarding = self._forwarding(stack, outbox)
            sock = open_listener(host, port)
            # Exit callbacks run in reverse: threads end before the files are closed.
            woken = self._begin(stack, inbox, forwarding)
            app = ReceiverApp(
                inbox,
                show=self._show,
                report=self._report,
                out=chosen.out,
                credentials=self._credentials,
                counters=self._counters,
                accepted=woken.set,
                outbox=outbox,
            )
            scheme = "http" if chosen.certificate is None else "https"
            line = f"listening on {scheme}://{host_port(host, sock.getsockname()[1])}/webhook"
            serve_app(app, sock, certificate=chosen.certificate, report=self._report, begins=lambda: click.echo(line, err=True))

    def _begin(self, stack: ExitStack, inbox: Inbox, forwarding: Forwarding | None) -> threading.Event:
        chosen, receive = self._chosen, self._chosen.config.receive
        woken, wanted, stopping = threading.Event(), threading.Event(), threading.Event()
        runs = KnownRuns(chosen.runs)
        within_s = duration(receive.enrich_within)
        analyst = Analyst(runs, waits_s=within_s, ready=woken.set) if chosen.runs else None
        late = None
        if analyst is not None and forwarding is not None:
            late = LateVerdicts(inbox, analyst, forwarding, counters=self._counters, dashboard_url=chosen.dashboard_url)
        worker = Worker(
            inbox,
            policy=Policy(
                repeat_after_s=duration(receive.repeat_after),
                enrich_within_s=within_s,
                dashboard_url=chosen.dashboard_url,
                rules=chosen.config.actions,
            ),
            counters=self._counters,
            report=self._report,
            forwarding=forwarding,
            analyst=analyst,
            late=late,
            on_action=wanted.set,
        )
        threads = [threading.Thread(target=worker.run, args=(woken, stopping), name="worker", daemon=True)]
        if chosen.config.actions:
            actor = Actor(
                inbox,
                runs=KnownRuns(chosen.runs),
                rules=chosen.config.actions,
                counters=self._counters,
                show=self._show,
                report=self._report,
                forwarding=forwarding,
                dashboard_url=chosen.dashboard_url,
            )
            threads.append(threading.Thread(target=actor.run, args=(wanted, stopping), name="actor", daemon=True))

        def end() -> None:
            stopping.set()
            for event in (woken, wanted):
                event.set()
            if analyst is not None:
                analyst.stop()
            for thread in threads:
                thread.join(STOP_S)

        stack.callback(end)
        make_decoders()
        if analyst is not None:
            analyst.start()
        for thread in threads:
            thread.start()
        woken.set()
        return woken

    def _store(self) -> Store:
        state = self._chosen.state
        try:
            store = Store(state, report=self._report)
            if store.hold():
                return store
        except StoreError as error:
            raise InputError(state or "the store", f"{error}; choose another folder with --state") from error
        store.close()
        raise InputError(state or "the store", "another receiver or watcher uses this folder; choose another with --state")

    def _forwarding(self, stack: ExitStack, outbox: Outbox) -> Forwarding | None:
        """Start a sender, and return its forwarding; ``None`` without targets."""
        chosen = self._chosen
        if chosen.config_file is None or not chosen.config.targets:
            return None
        from rankscope.alerts.deliver.sender import Sender
        from rankscope.alerts.deliver.targets import load_targets

        targets = load_targets(chosen.config_file, absent=self._report)
        sender = Sender(outbox, targets, report=self._report)
        stack.callback(sender.stop)
        sender.start()
        return Forwarding(
            outbox,
            targets={target.name: target.most_alerts for target in targets},
            routes=chosen.config.routes,
            external_url=chosen.dashboard_url or "",
            wake=sender.wake,
        )


def load_credentials(receive: ReceiveSection, *, folder: Path, report: Callable[[str], object]) -> Credentials:
    """Load the accepted credentials; ``folder`` is the base of their files. Raises ``InputError`` for an unusable secret."""

    def known(place: SecretPlace) -> RotatedSecret:
        return RotatedSecret(place.secret(folder), report=report)

    signed = [known(place) for place in receive.webhook_secrets]
    for one in signed:
        try:
            parse_secret(one.value.decode())
        except SecretError as error:
            raise InputError(one.where, f"not a Standard Webhooks secret: {error}") from error
    return Credentials(
        bearer=[known(place) for place in receive.bearer],
        basic=[(source.user, known(source.password)) for source in receive.basic],
        signed=signed,
        grafana=[known(place) for place in receive.grafana_secrets],
        grafana_timestamp_header=receive.grafana_timestamp_header,
    )
