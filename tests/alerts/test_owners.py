"""Every alert has one owner: no name can be emitted by both the Prometheus rules and the watcher."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from pathlib import Path

import pytest
import yaml

from rankscope.alerts import watch
from rankscope.alerts.owners import ALERT_OF_KIND, ALERTS, WATCHER_ALERTS, OwnedAlert
from rankscope.alerts.rules.rule_file import rules_text, runbooks
from rankscope.alerts.watch.conditions.candidate import Subject

OF_RULES = {alert.alertname: alert.severity for alert in ALERTS if alert.owner == "prometheus"}


def modules_of_the_watcher() -> list[str]:
    return [module.name for module in pkgutil.walk_packages(watch.__path__, f"{watch.__name__}.")]


def test_a_name_has_one_row_and_a_runbook() -> None:
    assert [name for name, rows in Counter(alert.alertname for alert in ALERTS).items() if rows > 1] == []
    assert {alert.alertname for alert in ALERTS} == set(runbooks())


def test_the_rules_emit_their_rows_and_no_others() -> None:
    rules = [rule for group in yaml.safe_load(rules_text())["groups"] for rule in group["rules"] if "alert" in rule]
    assert {rule["alert"]: rule["labels"]["severity"] for rule in rules} == OF_RULES


def test_the_watcher_emits_its_rows_and_no_others() -> None:
    used = [row for name in modules_of_the_watcher() for row in vars(importlib.import_module(name)).values()]
    rows = {row.alertname for row in used if isinstance(row, OwnedAlert)} | {row.alertname for row in ALERT_OF_KIND.values()}
    assert rows == set(WATCHER_ALERTS)
    # and no module spells an alert's name: names come from its row
    for name in modules_of_the_watcher():
        source = Path(str(importlib.import_module(name).__file__)).read_text()
        assert [alert.alertname for alert in ALERTS if f'"{alert.alertname}"' in source] == [], name


@pytest.mark.parametrize("row", [row for row in ALERTS if row.owner == "prometheus"], ids=lambda row: row.alertname)
def test_the_watcher_cannot_emit_what_belongs_to_the_rules(row: OwnedAlert) -> None:
    with pytest.raises(AssertionError, match=row.alertname):
        Subject(run_id="r1").candidate(row, {"summary": "It is so."})
