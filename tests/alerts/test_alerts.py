"""Every alert is emitted by one program; every alert, option, policy and series is documented; commands load what they need."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from tests.alerts.external_metrics import EXTERNAL

from rankscope.alerts import watch
from rankscope.alerts.commands import alerts
from rankscope.alerts.rules.rule_file import rules_text, runbooks
from rankscope.alerts.rules.thresholds import DEFAULTS, SEVERITY_OF
from rankscope.alerts.rules.xid_policy import POLICIES
from rankscope.alerts.watcher_alerts import ALERT_OF_KIND, WATCHER_ALERTS, WatcherAlert

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


def test_every_alert_is_documented_with_its_severity() -> None:
    named = dict(re.findall(r"^\| `(\w+)` \| (critical|warning|info) \|", PAGE, flags=re.MULTILINE))
    assert named == SEVERITY_OF


def test_every_policy_about_xids_is_documented() -> None:
    for policy in POLICIES:
        assert f"| {', '.join(map(str, policy.codes))} | " in PAGE
        assert policy.why in PAGE


def test_every_gpu_state_and_external_metric_is_documented() -> None:
    for state in re.findall(r'"state", "(\w+)", "", ""', rules_text()):
        assert f"| `{state}` |" in PAGE
    for metric in EXTERNAL:
        assert f"`{metric.name}`" in PAGE or metric.source == "Prometheus itself"


def modules_of_the_watcher() -> list[str]:
    return [module.name for module in pkgutil.walk_packages(watch.__path__, f"{watch.__name__}.")]


def test_every_alert_has_a_runbook_and_one_program_that_emits_it() -> None:
    assert SEVERITY_OF.keys() == runbooks().keys()
    assert not WATCHER_ALERTS.keys() & DEFAULTS.keys()


def test_the_rules_emit_the_alerts_with_thresholds_and_no_others() -> None:
    rules = [rule for group in yaml.safe_load(rules_text())["groups"] for rule in group["rules"] if "alert" in rule]
    severities = {name: severity for name, severity in SEVERITY_OF.items() if name not in WATCHER_ALERTS}
    assert {rule["alert"]: rule["labels"]["severity"] for rule in rules} == severities


def test_the_watcher_emits_its_alerts_and_no_others() -> None:
    used = [value for name in modules_of_the_watcher() for value in vars(importlib.import_module(name)).values()]
    alerts = [value for value in used if isinstance(value, WatcherAlert)]
    assert {alert.alertname for alert in (*alerts, *ALERT_OF_KIND.values())} == WATCHER_ALERTS.keys()
    # and no module spells an alert's name: names come from its row
    for name in modules_of_the_watcher():
        source = Path(str(importlib.import_module(name).__file__)).read_text()
        assert [alert for alert in SEVERITY_OF if f'"{alert}"' in source] == [], name


@pytest.mark.slow
def test_commands_import_heavy_modules_only_on_use() -> None:
    code = "import sys, rankscope.alerts.commands; print(sorted({'httpx', 'uvicorn', 'sqlite3', 'numpy'} & set(sys.modules)))"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert completed.stdout.strip() == "[]", completed.stderr
