"""Settings of a receiver, from its file and the command line."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from rankscope.alerts.deliver.secret import SecretPlace
from rankscope.alerts.deliver.signing import parse_secret
from rankscope.alerts.receive.config import ReceiverConfig, ReceiveSection, load_config
from rankscope.alerts.receive.web.authentication import Credentials, RotatedSecret, check_length
from rankscope.alerts.store.folders import receiver_state
from rankscope.base.errors import InputError
from rankscope.base.http import is_loopback
from rankscope.base.options import ListenAddress

DEFAULT_LISTEN: Final = "127.0.0.1:9099"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverSettings:
    """Settings of a receiver."""

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

    def needing_restart(self, newer: ReceiverSettings) -> list[str]:
        """Names of the settings in which ``newer`` differs and that only a restart applies."""
        names = ("listen", "state", "certificate")
        return [name for name in names if getattr(self, name) != getattr(newer, name)]


def receiver_settings(
    file: Path | None,
    *,
    listen: tuple[str, int] | None,
    runs: Sequence[Path],
    dashboard_url: str | None,
    state: Path | None,
    out: Path | None,
) -> ReceiverSettings:
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
    return ReceiverSettings(
        config=config,
        config_file=file,
        folder=folder,
        listen=listen or ListenAddress().convert(receive.listen or DEFAULT_LISTEN, None, None),
        runs=folders,
        dashboard_url=dashboard_url or receive.dashboard_url,
        state=state,
        out=out,
    )


def accepted_credentials(chosen: ReceiverSettings, *, report: Callable[[str], object]) -> Credentials:
    """Load the accepted credentials, and check that they suffice for the other settings.

    Raises ``InputError`` for an unusable secret and ``click.UsageError`` for settings that would be unsafe.
    """
    credentials = load_credentials(chosen.config.receive, folder=chosen.folder, report=report)
    host, _ = chosen.listen
    local = is_loopback(host)
    if not credentials.required and not local:
        raise click.UsageError(
            f"{host} can be reached from other machines, where anyone could send and read alerts; set credentials in "
            "[receive] of --config: bearer, basic, webhook_secrets or grafana_secrets"
        )
    if not credentials.required and (chosen.config.targets or chosen.config.actions):
        raise click.UsageError(
            "every user of this machine could send alerts to the targets and request captures; set credentials in [receive] of "
            "--config: bearer, basic, webhook_secrets or grafana_secrets"
        )
    if credentials.sent_in_requests and chosen.certificate is None and not local:
        raise click.UsageError(
            f"tokens and passwords for {host} would be sent unencrypted; set tls_cert and tls_key in [receive], or listen on "
            "127.0.0.1 behind a TLS proxy"
        )
    return credentials


def load_credentials(receive: ReceiveSection, *, folder: Path, report: Callable[[str], object]) -> Credentials:
    """Load the accepted credentials; ``folder`` is the base of their files. Raises ``InputError`` for an unusable secret."""

    def secret(place: SecretPlace, check: Callable[[str], object] = check_length) -> RotatedSecret:
        return RotatedSecret(place.secret(folder), check=check, report=report)

    return Credentials(
        bearer=[secret(place) for place in receive.bearer],
        basic=[(source.user, secret(source.password)) for source in receive.basic],
        signed=[secret(place, parse_secret) for place in receive.webhook_secrets],
        grafana=[secret(place) for place in receive.grafana_secrets],
        grafana_timestamp_header=receive.grafana_timestamp_header,
    )
