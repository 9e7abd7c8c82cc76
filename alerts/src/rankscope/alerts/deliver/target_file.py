"""The destinations in the operator's ``alerts.toml``.

An error in the file is reported in one line with the target, the field and the reason.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import click
import msgspec

from rankscope.alerts.deliver.endpoint import Endpoint
from rankscope.alerts.deliver.post import ATTEMPT_S
from rankscope.alerts.deliver.retrying import RETRY_FOR_S
from rankscope.alerts.deliver.secret import Secret, SecretPlace, SecretUnavailableError
from rankscope.alerts.deliver.signing import parse_secret
from rankscope.alerts.deliver.targets import Rate, Target, TemplateName
from rankscope.alerts.toml_file import converted
from rankscope.base.config_files import read_toml
from rankscope.base.errors import InputError, MissingError
from rankscope.base.options import http_url, parse_duration, parse_rate
from rankscope.base.text import shortened

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PAGERDUTY: Final = "https://events.pagerduty.com/v2/enqueue"
_RATES: Final[dict[TemplateName, str]] = {"slack": "1/s", "teams": "1/s", "pagerduty": "120/min"}
"""Sustained rates that these services accept; no other service is known to need a limit."""


class _EndpointEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: str | None = None
    url_env: str | None = None
    url_file: str | None = None
    bearer: SecretPlace | None = None
    basic: SecretPlace | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    proxy: str | None = None
    timeout: str | None = None


class _TargetEntry(_EndpointEntry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    template: TemplateName = "generic"
    secrets: list[SecretPlace] = []
    routing_key: SecretPlace | None = None
    retry_for: str | None = None
    rate_limit: str | None = None


class _TargetFileContent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    target: Annotated[list[_TargetEntry], msgspec.Meta(max_length=64)] = []
    alertmanager: Annotated[list[_EndpointEntry], msgspec.Meta(max_length=64)] = []
    receive: object = None
    """Belongs to the receiver (``receive/config.py``), like the next two fields."""
    route: object = None
    action: object = None


@dataclass(frozen=True, slots=True)
class Destinations:
    """The targets and Alertmanagers of a file."""

    targets: list[Target]
    alertmanagers: list[Endpoint]


def load_targets(path: Path, *, absent: Callable[[str], object] | None = None) -> list[Target]:
    """Load the targets in a file, at least one; see ``load_destinations``."""
    targets = load_destinations(path, absent=absent).targets
    if not targets:
        raise InputError(path, "no [[target]] in it")
    return targets


def load_destinations(path: Path, *, absent: Callable[[str], object] | None = None) -> Destinations:
    """Load the targets and Alertmanagers in a file. Raises ``InputError``, also for a missing secret, without its text.

    With ``absent`` an unreadable file of a secret or certificate is no error; ``absent`` takes a line about it instead. Each
    attempt reads the file again, as it does for a file that disappears later. Other destinations are not affected.
    """
    config = converted(path, read_toml(path), _TargetFileContent)
    if not config.target and not config.alertmanager:
        raise InputError(path, "no [[target]] and no [[alertmanager]] in it")
    targets: list[Target] = []
    for number, entry in enumerate(config.target):
        context = _EntryContext(path.parent, f"target {entry.name}", absent)
        try:
            targets.append(_target(entry, context, taken_names={target.name for target in targets}))
        except _FieldError as error:
            name = "" if error.field == "name" else f" ({entry.name})"
            raise InputError(path, error.reason, place=f"target[{number}].{error.field}{name}") from error
    managers: list[Endpoint] = []
    for number, manager in enumerate(config.alertmanager):
        try:
            managers.append(Endpoint(**_endpoint(manager, _EntryContext(path.parent, f"alertmanager[{number}]", absent))))
        except _FieldError as error:
            raise InputError(path, error.reason, place=f"alertmanager[{number}].{error.field}") from error
    return Destinations(targets, managers)


class _FieldError(Exception):
    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _EntryContext:
    """Folder of the files of a target or Alertmanager, its name, and callback for missing files."""

    folder: Path
    name: str
    absent: Callable[[str], object] | None

    def secret(self, field: str, place: SecretPlace, check: Callable[[str], object] = str) -> Secret:
        """Return the secret. If it can be read, ``check`` must not raise ``ValueError`` or ``click.BadParameter``."""
        secret = place.secret(self.folder)
        try:
            text = secret.read()
        except SecretUnavailableError as error:
            if secret.file is None:  # a variable cannot appear later
                raise _FieldError(field, str(error)) from error
            self.report_missing(field, str(error))
            return secret
        try:
            check(text)
        except (ValueError, click.BadParameter) as error:
            raise _FieldError(field, f"{secret.where}: {error}") from error
        return secret

    def report_missing(self, field: str, reason: str) -> None:
        """Report a missing file, or raise ``_FieldError`` without ``absent``."""
        if self.absent is None:
            raise _FieldError(field, reason)
        self.absent(f"{self.name}: {reason}; retried until the file exists")


def _target(entry: _TargetEntry, context: _EntryContext, taken_names: set[str]) -> Target:
    if not _NAME.fullmatch(entry.name):
        raise _FieldError("name", f"{shortened(entry.name, 70)!r} is not made of at most 64 letters, digits, '.', '_', '-'")
    if entry.name in taken_names:
        raise _FieldError("name", f"{entry.name!r} is the name of another target")
    _refuse_contradictions(entry)
    if entry.template == "apprise":
        _require_apprise()
    return Target(
        **_endpoint(entry, context),
        name=entry.name,
        label=entry.name,
        template=entry.template,
        secrets=tuple(context.secret(f"secrets[{number}]", secret, parse_secret) for number, secret in enumerate(entry.secrets)),
        routing_key=None if entry.routing_key is None else context.secret("routing_key", entry.routing_key),
        retry_for_s=_seconds("retry_for", entry.retry_for, RETRY_FOR_S),
        rate=_rate(entry.rate_limit or _RATES.get(entry.template)),
    )


def _endpoint(entry: _EndpointEntry, context: _EntryContext) -> dict[str, Any]:
    template = entry.template if isinstance(entry, _TargetEntry) else "generic"
    url = _url(entry, context, template)
    if entry.bearer is not None and entry.basic is not None:
        raise _FieldError("basic", "not together with bearer")
    if (entry.cert_file is None) != (entry.key_file is None):
        raise _FieldError("cert_file" if entry.cert_file is None else "key_file", "cert_file and key_file are given together")
    files: dict[str, Path] = {}
    for field in ("ca_file", "cert_file", "key_file"):
        if (name := getattr(entry, field)) is not None:
            files[field] = context.folder / name
            if not files[field].is_file():
                context.report_missing(field, f"{files[field]}: no such file")
    return {
        "url": url,
        "bearer": None if entry.bearer is None else context.secret("bearer", entry.bearer, _check_token),
        "basic": None if entry.basic is None else context.secret("basic", entry.basic, _check_login),
        "ca_file": files.get("ca_file"),
        "certificate": (files["cert_file"], files["key_file"]) if "cert_file" in files else None,
        "proxy": _proxy(entry.proxy),
        "timeout_s": _seconds("timeout", entry.timeout, ATTEMPT_S, most=60.0),
    }


def _require_apprise() -> None:
    if importlib.util.find_spec("apprise") is None:
        raise MissingError("Apprise is not installed; run: pip install 'rankscope[apprise]'")


def _refuse_contradictions(entry: _TargetEntry) -> None:
    if (entry.template == "pagerduty") != (entry.routing_key is not None):
        raise _FieldError("routing_key", 'required with template = "pagerduty", and only there')
    if entry.template == "apprise":
        for name in ("secrets", "bearer", "basic", "ca_file", "cert_file", "key_file", "proxy"):
            if getattr(entry, name):
                raise _FieldError(name, "not with Apprise: its address contains all settings")


def _check_token(text: str) -> None:
    if not text.isascii():
        raise ValueError("a header allows ASCII only")


def _check_login(text: str) -> None:
    if ":" not in text:
        raise ValueError("expected USER:PASSWORD")


def _url(entry: _EndpointEntry, context: _EntryContext, template: TemplateName) -> Secret:
    url_fields = [name for name in ("url", "url_env", "url_file") if getattr(entry, name) is not None]
    if not url_fields and template == "pagerduty":
        return Secret(value=_PAGERDUTY)
    if len(url_fields) != 1:
        raise _FieldError("url", "give exactly one of url, url_env, url_file")
    if template == "apprise" and entry.url is not None:
        raise _FieldError("url", "an address of Apprise is a secret; give url_env or url_file")
    if entry.url is None:
        check: Callable[[str], object] = str if template == "apprise" else http_url
        return context.secret(url_fields[0], SecretPlace(env=entry.url_env, file=entry.url_file), check)
    try:
        return Secret(value=http_url(entry.url))
    except click.BadParameter as error:
        raise _FieldError("url", error.message) from error


def _seconds(field: str, text: str | None, usual: float, *, most: float | None = None) -> float:
    try:
        seconds = usual if text is None else parse_duration(text, needs_unit=True)
    except ValueError as error:
        raise _FieldError(field, str(error)) from error
    if most is not None and seconds > most:
        raise _FieldError(field, f"at most {most:g}s")
    return seconds


def _rate(text: str | None) -> Rate | None:
    if text is None:
        return None
    try:
        count, per_s = parse_rate(text)
    except ValueError:
        count, per_s = 0, 0.0
    if not count:
        raise _FieldError("rate_limit", f"{text!r} is no rate such as 1/s, 30/min or 100/h")
    return Rate(count, per_s)


def _proxy(text: str | None) -> str | None:
    if text is None:
        return None
    if text == "none":
        return ""
    try:
        http_url(text)
    except click.BadParameter as error:
        raise _FieldError("proxy", 'expected http://host:port, or "none"') from error
    if urlsplit(text).username is not None:
        raise _FieldError("proxy", "a password does not belong here; use HTTPS_PROXY")
    return text
