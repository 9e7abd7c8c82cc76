"""The documentation names what there is."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from rankscope.alerts.alerted import EVERY
from rankscope.alerts.commands import alerts
from rankscope.alerts.rules import runbooks

PAGE = (Path(__file__).parents[2] / "docs" / "alerts.md").read_text()


@pytest.mark.parametrize("verb", sorted(alerts.commands))
def test_every_option_is_documented(verb: str) -> None:
    for parameter in alerts.commands[verb].params:
        if isinstance(parameter, click.Option):
            assert parameter.opts[0] in PAGE


def test_every_command_line_is_one_that_exists() -> None:
    lines = re.findall(r"^rankscope alerts (\w+) .*$", PAGE, flags=re.MULTILINE)
    assert set(lines) == set(alerts.commands)
    for options in re.findall(r"^rankscope alerts (\w+) (.*)$", PAGE, flags=re.MULTILINE):
        known = {name for parameter in alerts.commands[options[0]].params for name in parameter.opts}
        assert set(re.findall(r"--[\w-]+", options[1])) <= known


def test_every_alert_is_documented() -> None:
    named = set(re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE))
    assert named == set(runbooks())
    assert {rule.alertname for rule in EVERY} <= named
