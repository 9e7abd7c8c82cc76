"""The operator's targets, and their part of ``alerts.toml``.

An error in the file is reported in one line with the target, the field and the reason.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import click
import msgspec

from rankscope.alerts.deliver.message import cut
from rankscope.alerts.deliver.post import receiver_key, redact
from rankscope.alerts.deliver.retrying import RETRY_FOR_S
from rankscope.alerts.deliver.signing import Secret, SecretError, SecretPlace, SecretUnavailableError, parse_secret
from rankscope.alerts.payload import MAX_ALERTS
from rankscope.alerts.toml_file import converted, duration, read_toml
from rankscope.base.errors import InputError, MissingError
from rankscope.base.options import http_url, parse_rate

ATTEMPT_S: Final = 15.0
"""Seconds for one attempt, from name resolution to the headers of the answer."""

TemplateName = Literal["generic", "slack", "teams", "pagerduty", "apprise"]


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``count`` deliveries per ``per_s`` seconds. A burst of ``count`` is allowed after ``per_s`` without any."""

    count: float
    per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One destination of alerts. Its ``repr`` contains no secret."""

    name: str
    """Name in the outbox."""
    key: str
    """Name in the watcher's state file, which contains Alertmanagers, too."""
    label: str
    """Name in messages to users."""
    url: Secret
    template: TemplateName = "generic"
    secrets: tuple[Secret, ...] = ()
    """Signing secrets; each of them adds a signature."""
    bearer: Secret | None = None
    basic: Secret | None = None
    """``USER:PASSWORD``."""
    routing_key: Secret | None = None
    """For PagerDuty only."""
    retry_for_s: float = RETRY_FOR_S
    rate: Rate | None = None
    ca_file: Path | None = None
    proxy: str | None = field(default=None, repr=False)
    """Address of the proxy; empty for none; ``None`` reads the environment."""
    timeout_s: float = ATTEMPT_S

    @property
    def most_alerts(self) -> int:
        """Maximum number of alerts in one message."""
        return 1 if self.template == "pagerduty" else MAX_ALERTS


def webhook_target(url: str) -> Target:
    """Build the target for ``--webhook URL``."""
    name = receiver_key("webhook", url)
    # The name distinguishes webhooks on one host, and appears in outbox listings, too.
    return Target(name=name, key=name, label=f"{name} {redact(url)}", url=Secret(value=url))


_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PAGERDUTY: Final = "https://events.pagerduty.com/v2/enqueue"
_RATES: Final[dict[TemplateName, str]] = {"slack": "1/s", "teams": "1/s", "pagerduty": "120/min"}
"""Sustained rates that these services accept; no other service is known to need a limit."""


class _TargetEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    url: str | None = None
    url_env: str | None = None
    url_file: str | None = None
    template: TemplateName = "generic"
    secrets: list[SecretPlace] = []
    bearer: SecretPlace | None = None
    basic: SecretPlace | None = None
    routing_key: SecretPlace | None = None
    retry_for: str | None = None
    rate_limit: str | None = None
    ca_file: str | None = None
    proxy: str | None = None
    timeout: str | None = None


class _Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    target: Annotated[list[_TargetEntry], msgspec.Meta(min_length=1, max_length=64)]
    receive: object = None
    """Belongs to the receiver (``receive/config.py``), like the next two fields."""
    route: object = None
    action: object = None


def load_targets(path: Path, *, absent: Callable[[str], object] | None = None) -> list[Target]:
    """Load the targets in a file. Raises ``InputError``, also for a missing secret; its text contains no secret.

    With ``absent`` an unreadable file of a secret or CA is no error; ``absent`` takes a line about it instead. Each attempt reads
    the file again, as it does for a file that disappears later. Other targets are not affected.
    """
    config = converted(path, read_toml(path), _Config)
    targets: list[Target] = []
    for number, entry in enumerate(config.target):
        place = _Place(path.parent, f"target {entry.name}", absent)
        try:
            targets.append(_target(entry, place, taken={target.name for target in targets}))
        except _WrongError as error:
            name = "" if error.field == "name" else f" ({entry.name})"
            raise InputError(path, error.reason, place=f"target[{number}].{error.field}{name}") from error
    return targets


class _WrongError(Exception):
    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _Place:
    """Folder of a target's files, name of the target, and callback for missing files."""

    folder: Path
    name: str
    absent: Callable[[str], object] | None

    def secret(self, field: str, place: SecretPlace, check: Callable[[str], str] = lambda _: "") -> Secret:
        """Return the secret. If it can be read, ``check`` must find nothing wrong with it."""
        secret = place.secret(self.folder)
        try:
            text = secret.read()
        except SecretUnavailableError as error:
            if secret.file is None:  # a variable cannot appear later
                raise _WrongError(field, str(error)) from error
            self.waits(field, str(error))
        else:
            if wrong := check(text):
                raise _WrongError(field, f"{secret.where}: {wrong}")
        return secret

    def waits(self, field: str, reason: str) -> None:
        """Report a missing file, or raise ``_WrongError`` without ``absent``."""
        if self.absent is None:
            raise _WrongError(field, reason)
        self.absent(f"{self.name}: {reason}; retried until the file exists")


def _target(entry: _TargetEntry, place: _Place, taken: set[str]) -> Target:
    if not _NAME.fullmatch(entry.name):
        raise _WrongError("name", f"{cut(entry.name, 70)!r} is not made of at most 64 letters, digits, '.', '_', '-'")
    if entry.name in taken:
        raise _WrongError("name", f"{entry.name!r} is the name of another target")
    url = _url(entry, place)
    _refuse_contradictions(entry)
    if entry.template == "apprise":
        _require_apprise()
    ca_file = None if entry.ca_file is None else place.folder / entry.ca_file
    if ca_file is not None and not ca_file.is_file():
        place.waits("ca_file", f"{ca_file}: no such file")
    return Target(
        name=entry.name,
        key=f"target-{entry.name}",
        label=entry.name,
        url=url,
        template=entry.template,
        secrets=tuple(place.secret(f"secrets[{number}]", one, _no_key) for number, one in enumerate(entry.secrets)),
        bearer=None if entry.bearer is None else place.secret("bearer", entry.bearer, _no_token),
        basic=None if entry.basic is None else place.secret("basic", entry.basic, _no_login),
        routing_key=None if entry.routing_key is None else place.secret("routing_key", entry.routing_key),
        retry_for_s=_seconds("retry_for", entry.retry_for, RETRY_FOR_S),
        rate=_rate(entry.rate_limit or _RATES.get(entry.template)),
        ca_file=ca_file,
        proxy=_proxy(entry.proxy),
        timeout_s=_seconds("timeout", entry.timeout, ATTEMPT_S, most=60.0),
    )


def _require_apprise() -> None:
    """Raise ``MissingError`` if Apprise is not installed."""
    if importlib.util.find_spec("apprise") is None:
        raise MissingError("Apprise is not installed; run: pip install 'rankscope[apprise]'")


def _refuse_contradictions(entry: _TargetEntry) -> None:
    if (entry.template == "pagerduty") != (entry.routing_key is not None):
        raise _WrongError("routing_key", 'required with template = "pagerduty", and only there')
    if entry.bearer is not None and entry.basic is not None:
        raise _WrongError("basic", "not together with bearer")
    if entry.template == "apprise":
        for name in ("secrets", "bearer", "basic", "ca_file", "proxy"):
            if getattr(entry, name):
                raise _WrongError(name, "not with Apprise: its address contains all settings")


def _no_key(text: str) -> str:
    try:
        parse_secret(text)
    except SecretError as error:
        return str(error)
    return ""


def _no_token(text: str) -> str:
    return "" if text.isascii() else "a header allows ASCII only"


def _no_login(text: str) -> str:
    return "" if ":" in text else "expected USER:PASSWORD"


def _no_address(text: str) -> str:
    try:
        http_url(text)
    except click.BadParameter as error:
        return error.message
    return ""


def _url(entry: _TargetEntry, place: _Place) -> Secret:
    given = [name for name in ("url", "url_env", "url_file") if getattr(entry, name) is not None]
    if not given and entry.template == "pagerduty":
        return Secret(value=_PAGERDUTY)
    if len(given) != 1:
        raise _WrongError("url", "give exactly one of url, url_env, url_file")
    if entry.template == "apprise" and entry.url is not None:
        raise _WrongError("url", "an address of Apprise is a secret; give url_env or url_file")
    check = _no_address if entry.template != "apprise" else lambda _: ""
    if entry.url is None:
        return place.secret(given[0], SecretPlace(env=entry.url_env, file=entry.url_file), check)
    if wrong := check(entry.url):
        raise _WrongError(given[0], wrong)
    return Secret(value=entry.url)


def _seconds(field: str, text: str | None, usual: float, *, most: float | None = None) -> float:
    try:
        found = usual if text is None else duration(text)
    except ValueError as error:
        raise _WrongError(field, str(error)) from error
    if most is not None and found > most:
        raise _WrongError(field, f"at most {most:g}s")
    return found


def _rate(text: str | None) -> Rate | None:
    if text is None:
        return None
    try:
        count, per_s = parse_rate(text)
    except ValueError:
        count, per_s = 0, 0.0
    if not count:
        raise _WrongError("rate_limit", f"{text!r} is no rate such as 1/s, 30/min or 100/h")
    return Rate(count, per_s)


def _proxy(text: str | None) -> str | None:
    if text is None:
        return None
    if text == "none":
        return ""
    try:
        http_url(text)
    except click.BadParameter as error:
        raise _WrongError("proxy", 'expected http://host:port, or "none"') from error
    if urlsplit(text).username is not None:
        raise _WrongError("proxy", "a password does not belong here; use HTTPS_PROXY")
    return text
