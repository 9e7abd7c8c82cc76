"""``alerts explain`` of an Xid or an alert: facts with their source, and separate from them the actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jsonschema
import msgspec
import pytest

from rankscope.alerts.rules.explain import AlertExplained, Explanation, UnknownAlertError, XidExplained, explain, explain_text
from rankscope.alerts.rules.rule_file import runbooks
from rankscope.alerts.rules.tables import OTHERS, POLICIES, policy_of
from rankscope.alerts.rules.thresholds import DEFAULTS
from rankscope.exporter.xids import ACTIONABLE, CRITICAL, GRADED, SOURCE, XIDS


def one(question: str) -> Any:
    return explain([question]).explained[0]


def test_every_policy_is_about_codes_that_are_known_and_an_alert_that_there_is() -> None:
    codes = [(code, policy.severity) for policy in POLICIES for code in policy.codes]
    assert len(codes) == len(set(codes))
    assert {code for code, _ in codes} <= set(XIDS)
    assert {code for code, severity in codes if severity} <= GRADED
    assert {name for policy in (*POLICIES, OTHERS) for name in (policy.alert, *policy.also)} <= {*runbooks(), "none"}


def test_codes_after_which_one_always_has_to_act_are_critical_and_drain() -> None:
    assert set(CRITICAL) <= {code for policy in POLICIES if policy.alert == "GpuXidCritical" for code in policy.codes}
    for code in CRITICAL:
        assert (policy_of(code).alert, policy_of(code).drain) == ("GpuXidCritical", True)
    assert DEFAULTS["GpuXidCritical"]["severity"] == "critical"
    assert policy_of(94).alert == "GpuXidWarning"
    assert policy_of(45).alert == "none"


def test_of_every_code_that_asks_for_somebody_an_alert_tells() -> None:
    for code in ACTIONABLE:
        assert policy_of(code) is not OTHERS, code
        assert policy_of(code).alert != "none", code


def test_a_code_is_explained_by_fact_source_and_policy() -> None:
    for question in ("79", " 79", "xid79", "Xid 79", "XID-79"):
        told = one(question)
        assert isinstance(told, XidExplained)
        assert (told.code, told.action, told.cause) == (79, "reboot", "hardware")
        assert (told.source, told.read_on) == (SOURCE.title, SOURCE.read_on.isoformat())
        assert (told.alert, told.severity, told.drain) == ("GpuXidCritical", "critical", True)
        assert told.runbook == runbooks()["GpuXidCritical"]


def test_the_severity_of_an_nvlink_error_decides_what_to_do() -> None:
    for code in GRADED:
        told = one(str(code))
        fatal, non_fatal = told.by_severity
        assert (fatal.severity, fatal.alert, fatal.drain) == ("fatal", "GpuXidCritical", True)
        assert (non_fatal.severity, non_fatal.alert, non_fatal.drain) == ("non_fatal", "GpuXidRepeated", False)
        text = explain_text(explain([str(code)]))
        assert runbooks()["GpuXidCritical"].rstrip() in text
        assert runbooks()["GpuXidRepeated"].rstrip() in text
    assert one("79").by_severity == []
    assert set(one("GpuXidCritical").xids) >= GRADED


def test_what_is_not_known_is_not_made_up() -> None:
    told = one("9999")
    assert (told.name, told.meaning, told.action, told.source) == (None, None, None, None)
    assert (told.alert, told.drain) == ("GpuXidRepeated", False)
    text = explain_text(explain(["9999"]))
    assert "unknown" in text
    assert SOURCE.url in text


def test_an_alert_is_explained_by_its_settings_and_its_runbook() -> None:
    told = one("gpuxidoneunit")
    assert isinstance(told, AlertExplained)
    assert told.name == "GpuXidOneUnit"
    assert told.xids == [13, 31]
    assert told.settings["bursts"] == 2
    assert told.runbook in explain_text(explain(["GpuXidOneUnit"])) + "\n"


def test_a_code_of_which_several_alerts_may_tell_comes_with_the_runbook_of_each() -> None:
    for code in ("13", "31"):
        told = one(code)
        assert (told.alert, [alert.name for alert in told.also]) == ("GpuXidOneUnit", ["GpuXidManyUnits"])
        text = explain_text(explain([code]))
        assert "alert GpuXidOneUnit (warning), or GpuXidManyUnits (info). Mostly the application" in text
        assert text.index(runbooks()["GpuXidOneUnit"].rstrip()) < text.index(runbooks()["GpuXidManyUnits"].rstrip())
    assert one("GpuXidManyUnits").xids == [13, 31]


def test_everything_can_be_explained_and_a_runbook_that_codes_share_comes_once() -> None:
    everything = explain([*map(str, XIDS), *runbooks()])
    text = explain_text(everything)
    for name, page in runbooks().items():
        assert text.count(page.rstrip()) == 1, name
    for code, xid in XIDS.items():
        assert f"Xid {code}: {xid.name}\n" in text
        assert xid.meaning in text


def test_a_name_that_is_none_is_refused_with_what_may_be_meant() -> None:
    with pytest.raises(UnknownAlertError, match="did you mean GpuDown"):
        explain(["79", "GpuDwon"])
    with pytest.raises(UnknownAlertError, match="a number is an Xid"):
        explain(["\x1b[31m"])


def test_the_command_line_speaks_text_and_json(cli: Callable[..., Any]) -> None:
    done = cli("alerts", "explain", "79", "GpuDown", "--format", "json")
    assert done.returncode == 0
    jsonschema.validate(msgspec.json.decode(done.stdout), msgspec.json.schema(Explanation))
    assert msgspec.json.decode(done.stdout, type=Explanation) == explain(["79", "GpuDown"])
    done = cli("alerts", "explain", "GpuDwon")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean GpuDown?" in done.stderr
