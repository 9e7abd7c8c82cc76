"""The documentation names every command, option, alert, policy and series."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from tests.alerts.external_metrics import EXTERNAL

from rankscope.alerts.commands import alerts
from rankscope.alerts.rules.rule_file import rules_text
from rankscope.alerts.rules.thresholds import SEVERITY_OF
from rankscope.alerts.rules.xid_policy import POLICIES

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [path for name in ("alerts", "rules", "webhooks", "receiver") for path in sorted(DOCS.glob(f"{name}*.md"))]
PAGE = "\n".join(path.read_text() for path in PAGES)


def verbs(group: click.Group = alerts, words: tuple[str, ...] = ()) -> dict[tuple[str, ...], click.Command]:
    """Return every command by its words, including those of nested groups."""
    by_key: dict[tuple[str, ...], click.Command] = {}
    for name, command in group.commands.items():
        by_key |= verbs(command, (*words, name)) if isinstance(command, click.Group) else {(*words, name): command}
    return by_key


VERBS = verbs()


@pytest.mark.parametrize("words", sorted(VERBS), ids=" ".join)
def test_every_option_is_documented(words: tuple[str, ...]) -> None:
    for parameter in VERBS[words].params:
        if isinstance(parameter, click.Option):
            assert parameter.opts[0] in PAGE


def test_every_command_line_is_one_that_exists() -> None:
    lines = [line.split() for line in re.findall(r"^rankscope alerts (.*)$", PAGE, flags=re.MULTILINE)]
    shown = {words: line for line in lines for words in VERBS if tuple(line[: len(words)]) == words}
    assert set(shown) == set(VERBS)
    assert all(any(tuple(line[: len(words)]) == words for words in VERBS) for line in lines)
    for words, line in shown.items():
        names = {name for parameter in VERBS[words].params for name in parameter.opts}
        assert {word for word in line if word.startswith("--")} <= names


def test_every_alert_is_documented_with_its_severity() -> None:
    named = dict(re.findall(r"^\| `(\w+)` \| (critical|warning|info) \|", PAGE, flags=re.MULTILINE))
    assert named == SEVERITY_OF


def test_every_policy_about_xids_is_documented() -> None:
    for policy in POLICIES:
        assert f"| {', '.join(map(str, policy.codes))} | " in PAGE
        assert policy.why in PAGE


def test_every_state_of_a_gpu_and_every_series_of_others_is_documented() -> None:
    for state in re.findall(r'"state", "(\w+)", "", ""', rules_text()):
        assert f"| `{state}` |" in PAGE
    for metric in EXTERNAL:
        assert f"`{metric.name}`" in PAGE or metric.source == "Prometheus itself"
