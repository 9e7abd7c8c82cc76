"""The documentation names what there is."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from rankscope.alerts.commands import alerts
from rankscope.alerts.findings import ALERTED
from rankscope.alerts.rules import runbooks

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "alerts.md").read_text() + (DOCS / "webhooks.md").read_text()
COMMAND_LINE = re.compile(r"^rankscope alerts ([\w-]+) (.*)$", flags=re.MULTILINE)


def verbs() -> dict[str, click.Command]:
    """All verbs, those of groups as ``outbox list``."""
    found: dict[str, click.Command] = {}
    for name, command in alerts.commands.items():
        if isinstance(command, click.Group):
            found |= {f"{name} {below}": verb for below, verb in command.commands.items()}
        else:
            found[name] = command
    return found


@pytest.mark.parametrize("verb", sorted(verbs()))
def test_every_option_is_documented(verb: str) -> None:
    for parameter in verbs()[verb].params:
        if isinstance(parameter, click.Option):
            assert parameter.opts[0] in PAGE


def test_every_command_line_is_one_that_exists() -> None:
    shown: set[str] = set()
    for verb, rest in COMMAND_LINE.findall(PAGE):
        name = verb if verb in verbs() else f"{verb} {rest.split()[0]}"
        shown.add(name)
        known = {option for parameter in verbs()[name].params for option in parameter.opts}
        assert set(re.findall(r"--[\w-]+", rest)) <= known
    assert shown == set(verbs())


def test_every_alert_is_documented() -> None:
    named = set(re.findall(r"^\| `([A-Z]\w+)` \|", PAGE, flags=re.MULTILINE))
    assert named == set(runbooks())
    assert {rule.alertname for rule in ALERTED.values()} <= named
