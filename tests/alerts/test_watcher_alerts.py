"""Every alert has one program that may emit it: the Prometheus rules or the watcher."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import yaml

from rankscope.alerts import watch
from rankscope.alerts.rules.rule_file import rules_text, runbooks
from rankscope.alerts.rules.thresholds import DEFAULTS, SEVERITY_OF
from rankscope.alerts.watcher_alerts import ALERT_OF_KIND, WATCHER_ALERTS, WatcherAlert


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
