"""``alerts explain`` of an Xid or an alert: facts with their source, and separate from them the actions."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml
from tests.command_line import Cli

from rankscope.alerts.rules.explain import (
    AlertExplanation,
    Explanation,
    UnknownAlertError,
    XidExplanation,
    explain_text,
    explanation_of,
)
from rankscope.alerts.rules.rule_file import rules_text, runbooks
from rankscope.alerts.rules.thresholds import DEFAULTS
from rankscope.alerts.rules.xid_policy import OTHERS, POLICIES, policy_of
from rankscope.exporter.xids import ACTIONABLE, CRITICAL, GRADED, SOURCE, XIDS


def one(question: str) -> Any:
    return explanation_of([question]).explained[0]


def test_every_policy_names_known_codes_and_an_existing_alert() -> None:
    codes = [(code, policy.severity) for policy in POLICIES for code in policy.codes]
    assert len(codes) == len(set(codes))
    assert {code for code, _ in codes} <= set(XIDS)
    assert {code for code, severity in codes if severity} <= GRADED
    assert {name for policy in (*POLICIES, OTHERS) for name in (policy.alert, *policy.also)} <= {*runbooks(), "none"}


def test_codes_that_always_need_action_are_critical_and_drain() -> None:
    assert set(CRITICAL) <= {code for policy in POLICIES if policy.alert == "GpuXidCritical" for code in policy.codes}
    for code in CRITICAL:
        assert (policy_of(code).alert, policy_of(code).drain) == ("GpuXidCritical", True)
    assert DEFAULTS["GpuXidCritical"]["severity"] == "critical"
    assert policy_of(94).alert == "GpuXidWarning"
    assert policy_of(45).alert == "none"


def test_every_actionable_code_has_an_alert() -> None:
    for code in ACTIONABLE:
        assert policy_of(code) is not OTHERS, code
        assert policy_of(code).alert != "none", code


UNUSABLE = ("stopped working.", "no longer answers", "not be initialised", "does not recover", "every program", "did not answer")
"""Words of a meaning after which the GPU cannot go on."""
USABLE = ("contained to one", "healthy", "all corrected", "when it is free", "at the next reset", "not fatal")


def test_meaning_action_policy_alert_and_runbook_of_each_code_agree() -> None:
    rules = {
        rule["alert"]: rule for group in yaml.safe_load(rules_text())["groups"] for rule in group["rules"] if "alert" in rule
    }
    for code, xid in XIDS.items():
        policy = policy_of(code)
        # A GPU that cannot be used is drained at once, by a critical alert
        critical = policy.alert == "GpuXidCritical"
        assert xid.critical == critical, code
        assert not (critical and any(words in xid.meaning for words in USABLE)), code
        assert critical or not any(words in xid.meaning for words in UNUSABLE), code
        # A reset at once means that nothing runs before it; one that may wait says so in the meaning
        if xid.action in ("reset_gpu", "reboot"):
            assert critical or any(words in xid.meaning for words in USABLE), code
        if policy.alert == "none":
            continue
        alert = rules[policy.alert]
        text = " ".join(alert["annotations"]["description"].split())
        page = " ".join(runbooks()[policy.alert].partition("## What to do")[2].split())
        assert policy.drain == (alert["labels"]["severity"] == "critical"), code
        assert policy.drain == ("Take the node out of service (" in text), code
        if policy.alert in ("GpuXidCritical", "GpuXidWarning"):
            assert f'$labels.xid "{code}" }}}}{xid.meaning}' in text, code
            assert re.search(rf"\b{code}\b", page), code
            assert critical != ("may stay" in text), code
            assert critical != ("may stay" in page), code


def test_runbook_groups_codes_by_action() -> None:
    for alert in ("GpuXidCritical", "GpuXidWarning"):
        page = " ".join(runbooks()[alert].partition("## What to do")[2].split())
        by_action: dict[str, list[int]] = {}
        for code in (code for policy in POLICIES if policy.alert == alert for code in policy.codes):
            by_action.setdefault(XIDS[code].action, []).append(code)
        for codes in by_action.values():
            assert ", ".join(map(str, codes)) in page, (alert, codes)


def test_a_code_is_explained_by_fact_source_and_policy() -> None:
    for question in ("79", " 79", "xid79", "Xid 79", "XID-79"):
        explanation = one(question)
        assert isinstance(explanation, XidExplanation)
        assert (explanation.code, explanation.action, explanation.cause) == (79, "reboot", "hardware")
        assert (explanation.source, explanation.read_on) == (SOURCE.title, SOURCE.read_on.isoformat())
        assert (explanation.alert, explanation.severity, explanation.drain) == ("GpuXidCritical", "critical", True)
        assert explanation.runbook == runbooks()["GpuXidCritical"]


def test_nvlink_error_severity_determines_the_action() -> None:
    for code in GRADED:
        explanation = one(str(code))
        fatal, non_fatal = explanation.by_severity
        assert (fatal.severity, fatal.alert, fatal.drain) == ("fatal", "GpuXidCritical", True)
        assert (non_fatal.severity, non_fatal.alert, non_fatal.drain) == ("non_fatal", "GpuXidRepeated", False)
        text = explain_text(explanation_of([str(code)]))
        assert runbooks()["GpuXidCritical"].rstrip() in text
        assert runbooks()["GpuXidRepeated"].rstrip() in text
    assert one("79").by_severity == []
    assert set(one("GpuXidCritical").xids) >= GRADED


def test_unknown_code_is_reported_as_unknown() -> None:
    explanation = one("9999")
    assert (explanation.name, explanation.meaning, explanation.action, explanation.source) == (None, None, None, None)
    assert (explanation.alert, explanation.drain) == ("GpuXidRepeated", False)
    text = explain_text(explanation_of(["9999"]))
    assert "unknown" in text
    assert SOURCE.url in text


def test_an_alert_is_explained_by_its_settings_and_its_runbook() -> None:
    explanation = one("gpuxidoneunit")
    assert isinstance(explanation, AlertExplanation)
    assert explanation.name == "GpuXidOneUnit"
    assert explanation.xids == [13, 31]
    assert explanation.settings["bursts"] == 2
    assert explanation.runbook in explain_text(explanation_of(["GpuXidOneUnit"])) + "\n"


def test_code_with_several_alerts_shows_each_runbook() -> None:
    for code in ("13", "31"):
        explanation = one(code)
        assert (explanation.alert, [alert.name for alert in explanation.also]) == ("GpuXidOneUnit", ["GpuXidManyUnits"])
        text = explain_text(explanation_of([code]))
        assert "alert GpuXidOneUnit (warning), or GpuXidManyUnits (info). Mostly the application" in text
        assert text.index(runbooks()["GpuXidOneUnit"].rstrip()) < text.index(runbooks()["GpuXidManyUnits"].rstrip())
    assert one("GpuXidManyUnits").xids == [13, 31]


def test_all_codes_and_alerts_are_explained_with_each_runbook_once() -> None:
    everything = explanation_of([*map(str, XIDS), *runbooks()])
    text = explain_text(everything)
    for name, page in runbooks().items():
        assert text.count(page.rstrip()) == 1, name
    for code, xid in XIDS.items():
        assert f"Xid {code}: {xid.name}\n" in text
        assert xid.meaning in text


def test_unknown_name_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UnknownAlertError, match="did you mean GpuDown"):
        explanation_of(["79", "GpuDwon"])
    with pytest.raises(UnknownAlertError, match="a number is an Xid"):
        explanation_of(["\x1b[31m"])


def test_command_prints_json_and_suggests_names(cli: Cli) -> None:
    completed = cli("alerts", "explain", "79", "GpuDown", "--format", "json")
    assert completed.returncode == 0
    jsonschema.validate(msgspec.json.decode(completed.stdout), msgspec.json.schema(Explanation))
    assert msgspec.json.decode(completed.stdout, type=Explanation) == explanation_of(["79", "GpuDown"])
    completed = cli("alerts", "explain", "GpuDwon")
    assert (completed.returncode, completed.stdout) == (2, "")
    assert "did you mean GpuDown?" in completed.stderr
