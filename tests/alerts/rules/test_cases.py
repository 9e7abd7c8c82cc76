"""Unit tests of each alert, run by promtool: cases in ``rules/*.tests.yaml``, named ``ALERT: kind, kind; subject``."""

from __future__ import annotations

import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.needs import program

from rankscope.alerts.rules.rule_file import rules_text

CASES = sorted(Path(__file__).parent.glob("*.tests.yaml"))
KINDS = {"fires", "silent", "stale", "flapping"}


def groups() -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = yaml.safe_load(rules_text())["groups"]
    return groups


def cases_in(file: Path) -> list[dict[str, Any]]:
    tests: list[dict[str, Any]] = yaml.safe_load(file.read_text())["tests"]
    return tests


def by_alert() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return the tests by alert and by kind."""
    result: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for test in (test for file in CASES for test in cases_in(file)):
        alert, colon, what = test["name"].partition(": ")
        for kind in what.partition(";")[0].split(", ") if colon else ():
            if kind in KINDS:
                result[alert][kind].append(test)
    return result


def outcomes(test: dict[str, Any], alert: str) -> list[bool]:
    """Return for each evaluation of a test, in order of time, whether the alert fires."""
    return [bool(case["exp_alerts"]) for case in test.get("alert_rule_test", ()) if case["alertname"] == alert]


def recorded_names(text: str) -> set[str]:
    """Return the names of recorded series in an expression, a rule or a test: those with a colon."""
    return set(re.findall(r"[a-zA-Z_]\w*:[\w:]+", text))


def rules_needed(test: dict[str, Any], groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the groups with only the alerts of one case and the recording rules that they depend on."""
    expressions = yaml.safe_dump(test.get("promql_expr_test", []))
    names = {case["alertname"] for case in test.get("alert_rule_test", ())} | set(re.findall(r'alertname="(\w+)"', expressions))
    names |= recorded_names(expressions)
    while True:
        kept = [
            {**group, "rules": [rule for rule in group["rules"] if names & {rule.get("alert"), rule.get("record")}]}
            for group in groups
        ]
        missing = recorded_names(yaml.safe_dump(kept)) - names
        if not missing:
            return [group for group in kept if group["rules"]]
        names |= missing


def run_promtool(folder: Path, cases: Iterable[dict[str, Any]], groups: list[dict[str, Any]], *, interval: str) -> None:
    """Run promtool on cases, one file each: it evaluates all rules of a file for each case. ``interval``: of the evaluations."""
    names = []
    for number, test in enumerate(cases):
        needed = rules_needed(test, groups)
        (folder / f"{number}.rules.yaml").write_text(yaml.safe_dump({"groups": needed}))
        document = {"rule_files": [f"{number}.rules.yaml"], "evaluation_interval": interval, "tests": [test]}
        document["group_eval_order"] = [group["name"] for group in needed]
        (folder / f"{number}.yaml").write_text(yaml.safe_dump(document))
        names.append(f"{number}.yaml")
    assert names
    completed = subprocess.run(
        [program("promtool"), "test", "rules", *names],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "GOGC": "400", "GOMAXPROCS": "1"},  # less garbage collection, one core
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr


@pytest.mark.slow
@pytest.mark.parametrize("file", CASES, ids=lambda file: file.name.removesuffix(".tests.yaml"))
def test_rules_pass_every_promtool_case(file: Path, tmp_path: Path) -> None:
    document = yaml.safe_load(file.read_text())
    loaded = [group for group in groups() if f"{group['name']}.yaml" in document["rule_files"]]
    run_promtool(tmp_path, document["tests"], loaded, interval=document["evaluation_interval"])


@pytest.mark.slow
def test_every_alert_has_firing_silent_stale_and_flapping_cases() -> None:
    shown = {alert: set(kinds) for alert, kinds in by_alert().items()}
    assert shown == {rule["alert"]: KINDS for group in groups() for rule in group["rules"] if "alert" in rule}


def test_cases_cover_the_kind_in_their_name() -> None:
    for alert, kinds in by_alert().items():
        assert any(True in outcomes(test, alert) for test in kinds["fires"]), alert
        assert any(False in outcomes(test, alert) for test in kinds["silent"]), alert
        for test in kinds["stale"]:
            assert any("stale" in series["values"] for series in test["input_series"]), alert
            gone = any("ALERTS" in case["expr"] and not case["exp_samples"] for case in test.get("promql_expr_test", ()))
            assert gone or not outcomes(test, alert)[-1], alert
        # A flapping condition fires never, or once without a break; otherwise the case states how often.
        assert all(
            "ALERTS" in str(test.get("promql_expr_test")) or len(outcomes(test, alert)) > 2 for test in kinds["flapping"]
        ), alert
