"""Receiver's part of ``alerts.toml``: ``[receive]``, ``[[route]]``, ``[[action]]``; ``deliver.targets`` has ``[[target]]``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

import click
import msgspec

from rankscope.alerts.deliver.secret import SecretPlace
from rankscope.alerts.rules.rule_file import runbooks
from rankscope.alerts.toml_file import converted
from rankscope.base.config_files import read_toml
from rankscope.base.errors import InputError
from rankscope.base.options import ListenAddress, link_url, parse_duration, parse_rate
from rankscope.base.text import did_you_mean
from rankscope.runs.control import MAX_AGE_SECONDS, MAX_STEPS

SECTIONS: Final = ("receive", "route", "action", "target", "alertmanager")

_T = TypeVar("_T")


def action_rate(text: str) -> tuple[int, float]:
    """Parse ``1/10min per run`` into a count and seconds. Raises ``ValueError``."""
    return parse_rate(text.removesuffix(" per run").strip())


def _checked(check: Callable[[str], _T], text: str) -> _T:
    try:
        return check(text)
    except click.BadParameter as error:
        raise ValueError(error.message) from error


class BasicSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """User, and place of the password."""

    user: Annotated[str, msgspec.Meta(min_length=1, pattern="^[^:]*$")]
    password: SecretPlace


class ReceiveSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[receive]``: address, credentials and enrichment. Options on the command line take precedence."""

    listen: str | None = None
    runs: list[str] = []
    """Folders with runs. Alerts that name one of these runs are enriched, and actions send requests to them."""
    state: str | None = None
    dashboard_url: str | None = None
    repeat_after: str = "4h"
    """An alert that still fires, and arrives again, is forwarded again after this long."""
    enrich_within: str = "20s"
    """An alert is forwarded without a verdict if there is none after this long."""
    tls_cert: str | None = None
    tls_key: str | None = None
    bearer: list[SecretPlace] = []
    basic: list[BasicSource] = []
    webhook_secrets: list[SecretPlace] = []
    """Standard Webhooks secrets, ``whsec_…``, as used by rankscope's own sender."""
    grafana_secrets: list[SecretPlace] = []
    grafana_timestamp_header: str | None = None

    def __post_init__(self) -> None:
        for name in ("repeat_after", "enrich_within"):
            parse_duration(getattr(self, name), needs_unit=True)
        if self.listen is not None:
            _checked(lambda text: ListenAddress().convert(text, None, None), self.listen)
        if self.dashboard_url is not None:
            _checked(link_url, self.dashboard_url)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key are given together")


class Route(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[route]]``: alerts whose labels match go to ``targets``; the first matching route decides."""

    match: dict[str, str | list[str]] = {}
    targets: list[str]

    def matches(self, labels: dict[str, str]) -> bool:
        """Check that all labels match. A missing label is empty, as in Alertmanager."""
        return all(
            labels.get(name, "") in (wanted if isinstance(wanted, list) else (wanted,)) for name, wanted in self.match.items()
        )


class ActionRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[action]]``: request that a firing alert of this name triggers at its run."""

    alert: Annotated[str, msgspec.Meta(min_length=1)]
    do: Literal["capture", "dump"]
    match: dict[str, str | list[str]] = {}
    steps: Annotated[int, msgspec.Meta(ge=1, le=MAX_STEPS)] = 3
    at_most: str = "1/10min per run"
    at_most_overall: str = "10/1h"
    wait: str = "10m"
    """Maximum wait for the result."""

    def __post_init__(self) -> None:
        action_rate(self.at_most)
        action_rate(self.at_most_overall)
        if parse_duration(self.wait, needs_unit=True) > 86_400:
            raise ValueError(f"wait: a result is waited for at most a day, and a request is void after {MAX_AGE_SECONDS:.0f} s")

    def applies(self, labels: dict[str, str]) -> bool:
        """Check whether the rule applies to an alert with these labels."""
        return labels.get("alertname") == self.alert and Route(match=self.match, targets=[]).matches(labels)


class ReceiverConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The receiver's part of the file."""

    receive: ReceiveSection = ReceiveSection()
    routes: list[Route] = []
    actions: list[ActionRule] = []
    targets: list[str] = []
    """Names of the ``[[target]]`` tables."""


def load_config(path: Path) -> ReceiverConfig:
    """Load the receiver's part of the file at ``path``. Raises ``InputError``, with the place in the file."""
    read = read_toml(path)
    unknown = sorted(read.keys() - set(SECTIONS))
    if unknown:
        raise InputError(path, f"no such section: {unknown[0]}; known are {', '.join(SECTIONS)}")
    config = ReceiverConfig(
        receive=converted(path, read.get("receive", {}), ReceiveSection, section="receive"),
        routes=converted(path, read.get("route", []), list[Route], section="route"),
        actions=converted(path, read.get("action", []), list[ActionRule], section="action"),
        targets=_names(read.get("target")),
    )
    for number, route in enumerate(config.routes):
        for target in route.targets:
            if target not in config.targets:
                raise InputError(path, f"there is no [[target]] of the name {target!r}", place=f"route[{number}].targets")
    return config


def unknown_alerts(config: ReceiverConfig) -> list[str]:
    """Return a line for each action on an alert that rankscope does not define: a custom alert or a typing error."""
    alerts = runbooks()
    lines = []
    for number, rule in enumerate(config.actions):
        if rule.alert not in alerts:
            hint = did_you_mean(rule.alert, alerts, otherwise="correct if the alert is your own")
            lines.append(f"action[{number}].alert: rankscope has no alert {rule.alert!r}; {hint}")
    return lines


def _names(targets: object) -> list[str]:
    """Return the names of targets. Invalid tables are skipped here; ``deliver.targets`` reports them."""
    tables = targets if isinstance(targets, list) else []
    return [table["name"] for table in tables if isinstance(table, dict) and isinstance(table.get("name"), str)]
