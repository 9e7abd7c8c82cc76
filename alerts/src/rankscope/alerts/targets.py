"""``alerts.toml``: the operator's targets. Every mistake in it is one line: which target, which field, what is wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import click
import msgspec

from rankscope.alerts.apprise_courier import require_apprise
from rankscope.alerts.message import cut
from rankscope.alerts.options import http_url, rate, seconds
from rankscope.alerts.retrying import RETRY_FOR_S
from rankscope.alerts.secret import Secret, SecretPlace, SecretUnavailableError
from rankscope.alerts.signing import SecretError, parse_secret
from rankscope.alerts.target import ATTEMPT_S, Rate, Target, TemplateName
from rankscope.alerts.toml_file import converted, read_toml
from rankscope.runs.errors import InputError

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PAGERDUTY: Final = "https://events.pagerduty.com/v2/enqueue"
_RATES: Final[dict[TemplateName, str]] = {"slack": "1/s", "teams": "1/s", "pagerduty": "120/min"}
"""What these services take for good; nobody else is known to need one."""


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
    """This one and the next two are the receiver's (``receiver_config.py``)."""
    route: object = None
    action: object = None


def load_targets(path: Path) -> list[Target]:
    """The targets in a file, all secrets of which are there. Raises ``InputError``, which repeats no secret."""
    config = converted(path, read_toml(path), _Config)
    targets: list[Target] = []
    for number, entry in enumerate(config.target):
        try:
            targets.append(_target(entry, path.parent, taken={target.name for target in targets}))
        except _WrongError as error:
            name = "" if error.field == "name" else f" ({entry.name})"
            raise InputError(path, error.reason, place=f"target[{number}].{error.field}{name}") from error
    return targets


class _WrongError(Exception):
    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason


def _target(entry: _TargetEntry, folder: Path, taken: set[str]) -> Target:
    if not _NAME.fullmatch(entry.name):
        raise _WrongError("name", f"{cut(entry.name, 70)!r} is not made of at most 64 letters, digits, '.', '_', '-'")
    if entry.name in taken:
        raise _WrongError("name", f"{entry.name!r} is the name of another target")
    url = _url(entry, folder)
    _refuse_contradictions(entry)
    if entry.template == "apprise":
        require_apprise()
    ca_file = None if entry.ca_file is None else folder / entry.ca_file
    if ca_file is not None and not ca_file.is_file():
        raise _WrongError("ca_file", f"{ca_file}: no such file")
    basic = None if entry.basic is None else _secret("basic", entry.basic, folder)
    if basic is not None and ":" not in _read("basic", basic):
        raise _WrongError("basic", f"{basic.where}: expected USER:PASSWORD")
    return Target(
        name=entry.name,
        key=f"target-{entry.name}",
        label=entry.name,
        url=url,
        template=entry.template,
        secrets=tuple(_signing(number, place, folder) for number, place in enumerate(entry.secrets)),
        bearer=None if entry.bearer is None else _bearer(entry.bearer, folder),
        basic=basic,
        routing_key=None if entry.routing_key is None else _secret("routing_key", entry.routing_key, folder),
        retry_for_s=_seconds("retry_for", entry.retry_for, RETRY_FOR_S),
        rate=_rate(entry.rate_limit or _RATES.get(entry.template)),
        ca_file=ca_file,
        proxy=_proxy(entry.proxy),
        timeout_s=_seconds("timeout", entry.timeout, ATTEMPT_S, most=60.0),
    )


def _refuse_contradictions(entry: _TargetEntry) -> None:
    if (entry.template == "pagerduty") != (entry.routing_key is not None):
        raise _WrongError("routing_key", 'required with template = "pagerduty", and only there')
    if entry.bearer is not None and entry.basic is not None:
        raise _WrongError("basic", "there is a bearer already")
    if entry.template == "apprise":
        for name in ("secrets", "bearer", "basic", "ca_file", "proxy"):
            if getattr(entry, name):
                raise _WrongError(name, "Apprise's own address says how it is spoken to")


def _signing(number: int, place: SecretPlace, folder: Path) -> Secret:
    secret = _secret(f"secrets[{number}]", place, folder)
    try:
        parse_secret(_read(f"secrets[{number}]", secret))
    except SecretError as error:
        raise _WrongError(f"secrets[{number}]", f"{secret.where}: {error}") from error
    return secret


def _bearer(place: SecretPlace, folder: Path) -> Secret:
    secret = _secret("bearer", place, folder)
    if not _read("bearer", secret).isascii():
        raise _WrongError("bearer", f"{secret.where}: a header takes ASCII only")
    return secret


def _url(entry: _TargetEntry, folder: Path) -> Secret:
    given = [name for name in ("url", "url_env", "url_file") if getattr(entry, name) is not None]
    if not given and entry.template == "pagerduty":
        return Secret(value=_PAGERDUTY)
    if len(given) != 1:
        raise _WrongError("url", "give exactly one of url, url_env, url_file")
    if entry.template == "apprise" and entry.url is not None:
        raise _WrongError("url", "an address of Apprise is a secret; give url_env or url_file")
    if entry.url is not None:
        url = Secret(value=entry.url)
    else:
        url = _secret(given[0], SecretPlace(env=entry.url_env, file=entry.url_file), folder)
    text = _read(given[0], url)
    if entry.template != "apprise":
        try:
            http_url(text)
        except click.BadParameter as error:
            raise _WrongError(given[0], error.message) from error
    return url


def _secret(field: str, place: SecretPlace, folder: Path) -> Secret:
    secret = place.secret(folder)
    _read(field, secret)
    return secret


def _read(field: str, secret: Secret) -> str:
    try:
        return secret.read()
    except SecretUnavailableError as error:
        raise _WrongError(field, str(error)) from error


def _seconds(field: str, text: str | None, usual: float, *, most: float | None = None) -> float:
    try:
        found = usual if text is None else seconds(text)
    except click.BadParameter as error:
        raise _WrongError(field, error.message) from error
    if most is not None and found > most:
        raise _WrongError(field, f"at most {most:g}s")
    return found


def _rate(text: str | None) -> Rate | None:
    if text is None:
        return None
    try:
        count, per_s = rate(text)
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
