"""What each alert does, tried by promtool: the cases are in ``rules/*.tests.yaml``, named ``ALERT: kind, kind; what about``."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankscope.alerts.rules import rules_text

CASES = sorted(Path(__file__).parent.glob("*.tests.yaml"))
KINDS = {"fires", "silent", "stale", "flapping"}


def groups() -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = yaml.safe_load(rules_text())["groups"]
    return groups


def cases_in(file: Path) -> list[dict[str, Any]]:
    tests: list[dict[str, Any]] = yaml.safe_load(file.read_text())["tests"]
    return tests


def by_alert() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Alert to kind to the tests that show it."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for test in (test for file in CASES for test in cases_in(file)):
        alert, colon, what = test["name"].partition(": ")
        for kind in what.partition(";")[0].split(", ") if colon else ():
            if kind in KINDS:
                found[alert][kind].append(test)
    return found


def outcomes(test: dict[str, Any], alert: str) -> list[bool]:
    """Whether it fires, in the order of time."""
    return [bool(case["exp_alerts"]) for case in test.get("alert_rule_test", ()) if case["alertname"] == alert]


@pytest.mark.slow
@pytest.mark.parametrize("file", CASES, ids=lambda file: file.name.removesuffix(".tests.yaml"))
def test_alerts_do_as_the_cases_say(file: Path, tmp_path: Path, require_program: Callable[[str], str]) -> None:
    # Each group is a file of its own: promtool evaluates only what the cases are about.
    for group in groups():
        (tmp_path / f"{group['name']}.yaml").write_text(yaml.safe_dump({"groups": [group]}, sort_keys=False))
    (tmp_path / file.name).write_text(file.read_text())
    done = subprocess.run(
        [require_program("promtool"), "test", "rules", str(tmp_path / file.name)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_shown_firing_silent_stale_and_flapping() -> None:
    shown = {alert: set(kinds) for alert, kinds in by_alert().items()}
    assert shown == {rule["alert"]: KINDS for group in groups() for rule in group["rules"] if "alert" in rule}


def test_cases_show_what_their_names_say() -> None:
    for alert, kinds in by_alert().items():
        assert any(True in outcomes(test, alert) for test in kinds["fires"]), alert
        assert any(False in outcomes(test, alert) for test in kinds["silent"]), alert
        for test in kinds["stale"]:
            assert any("stale" in series["values"] for series in test["input_series"]), alert
            gone = any("ALERTS" in case["expr"] and not case["exp_samples"] for case in test.get("promql_expr_test", ()))
            assert gone or not outcomes(test, alert)[-1], alert
        # What flaps is either never told of, or told of once and without a break; or the case says how often.
        assert all(
            "ALERTS" in str(test.get("promql_expr_test")) or len(outcomes(test, alert)) > 2 for test in kinds["flapping"]
        ), alert
