"""Thresholds of the rules come from a file, which is checked before anything is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.command_line import Cli

from rankscope.alerts.rules.rule_file import rules_text
from rankscope.alerts.rules.thresholds import (
    DEFAULTS,
    SEVERITIES,
    SHARED,
    default_text,
    duration_seconds,
    duration_text,
    load_thresholds,
)
from rankscope.base.errors import InputError


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str | bytes], Path]:
    """Function that writes ``toml`` to a file: ``written(toml)`` returns its path."""

    def write(content: str | bytes) -> Path:
        path = tmp_path / "ours.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def rules_of(path: Path | None) -> dict[str, Any]:
    groups = yaml.safe_load(rules_text(settings=load_thresholds(path)))["groups"]
    return {rule.get("alert", rule.get("record")): rule for group in groups for rule in group["rules"]}


def test_defaults_apply_without_a_file(written: Callable[[str], Path]) -> None:
    assert rules_text(settings=load_thresholds()) == rules_text() == rules_text(settings=load_thresholds(written("")))


def test_exported_default_thresholds_change_no_rule(written: Callable[[str], Path]) -> None:
    assert rules_text(settings=load_thresholds(written(default_text()))) == rules_text()


def test_setting_without_a_default_is_a_commented_line(written: Callable[[str], Path]) -> None:
    assert "\n# per_gpu_hour = 2.5\n" in default_text()
    priced = load_thresholds(written(default_text().replace("# per_gpu_hour", "per_gpu_hour")))
    assert priced["price"]["per_gpu_hour"] == 2.5


def test_tables_and_alerts_correspond() -> None:
    assert {name for name in rules_of(None) if ":" not in name} == set(DEFAULTS) - set(SHARED)
    for name, settings in DEFAULTS.items():
        if name not in SHARED:
            assert {"enabled", "severity", "for", "keep_firing_for"} <= set(settings)
            assert settings["severity"] in SEVERITIES


def test_every_setting_is_explained_in_the_file() -> None:
    """Check for a comment in the lines before each setting, or at the top for the settings that every alert has."""
    lines = default_text().splitlines()
    own = [
        (number, line)
        for number, line in enumerate(lines)
        if re.match(r"\w+ = ", line) and not re.match(r"(severity|for|keep_firing_for) = ", line)
    ]
    assert len(own) > 25
    units = ("_second", "_minute", "_hour")
    for number, line in own:
        before = lines[max(0, number - 3) : number]
        assert (
            any(text.startswith("#") for text in before)
            or any(unit in line.split(" = ")[0] for unit in units)
            or "bursts" in line
        ), line


@pytest.mark.slow
def test_every_setting_is_used(written: Callable[[str], Path]) -> None:
    shipped = rules_text()
    for table, settings in DEFAULTS.items():
        for name, value in settings.items():
            if isinstance(value, bool) or name in ("severity", "currency"):
                continue
            other = '"17m"' if isinstance(value, str) else "1" if name.endswith("_ratio") and value != 1 else "93"
            changed = rules_text(settings=load_thresholds(written(f"[{table}]\n{name} = {other}\n")))
            assert changed != shipped, (table, name)
            assert "${" not in changed


def test_thresholds_durations_and_severities_reach_the_rules(written: Callable[[str], Path]) -> None:
    rules = rules_of(
        written(
            '[TrainingStalled]\nseconds = 900\nfor = "10m"\nkeep_firing_for = "0s"\nseverity = "info"\n'
            '[gpu_states]\nbusy_ratio = 0.2\n[GpuXidCritical]\nwindow = "1d"\n'
        )
    )
    stalled = rules["TrainingStalled"]
    assert "> 900" in stalled["expr"]
    assert (stalled["for"], stalled["labels"]["severity"], "keep_firing_for" in stalled) == ("10m", "info", False)
    assert "uuid:gpu_busy:ratio > 0.2," in rules["uuid_state:gpu_state:active"]["expr"]
    assert "offset 1d" in rules["GpuXidCritical"]["expr"]
    assert "< 86400" in rules["GpuXidCritical"]["expr"]


def test_disabled_alerts_and_empty_groups_are_omitted(written: Callable[[str], Path]) -> None:
    left_out = [name for name in DEFAULTS if name.startswith("GpuXid")] + ["NvswitchFatalError"]
    text = rules_text(settings=load_thresholds(written("".join(f"[{name}]\nenabled = false\n" for name in left_out))))
    groups = {group["name"]: group["rules"] for group in yaml.safe_load(text)["groups"]}
    assert "rankscope-xids.alerts" not in groups
    assert all(groups.values())
    assert not {rule.get("alert") for rules in groups.values() for rule in rules} & set(left_out)


def test_cost_requires_a_price(written: Callable[[str], Path]) -> None:
    assert rules_of(None)["cluster:gpu_hour_price:configured"]["expr"] == "vector(0) > 0"
    priced = rules_of(written('[price]\nper_gpu_hour = 2.5\ncurrency = "EUR"\n'))
    assert priced["cluster:gpu_hour_price:configured"]["expr"] == 'label_replace(vector(2.5), "currency", "EUR", "", "")'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[GpuDwn]\n", "[GpuDwn]: no such alert or table; did you mean GpuDown?"),
        ('[GpuDown]\nfro = "5m"\n', "[GpuDown] fro: no such setting; did you mean for?"),
        ("[GpuDown]\nfor = 5\n", "[GpuDown] for: 5 is not a duration with its unit"),
        ('[GpuDown]\nfor = "5 m"\n', "[GpuDown] for: '5 m' is not a duration"),
        ('[GpuDown]\nfor = "m"\n', "is not a duration"),
        ('[GpuDown]\nfor = ""\n', "is not a duration"),
        ('[GpuDown]\nfor = "99999999999999999w"\n', "is not a duration"),
        ('[gpu_states]\nwindow = "0s"\n', "[gpu_states] window: '0s' is not a duration"),
        ('[GpuDown]\nseverity = "page"\n', "[GpuDown] severity: 'page' is not one of critical, warning, info"),
        ('[GpuDown]\nenabled = "no"\n', "[GpuDown] enabled: 'no' is not true or false"),
        ("[GpuDown]\nfor = [1]\n", "[GpuDown] for: [1] is not a duration"),
        ("[GpuDown]\nfor = 2026-01-01\n", "is not a duration"),
        ("[GpuDown.for]\nx = 1\n", "is not a duration"),
        ("[TrainingStraggler]\nexcess_ratio = 0.2\n", "[TrainingStraggler]: an alert of the watcher"),
        ("[PcieDegraded]\nbusy_ratio = 15\n", "[PcieDegraded] busy_ratio: 15 is not a share of 1: 15 % is 0.15"),
        ("[PcieDegraded]\nbusy_ratio = -0.1\n", "is not a number that is not negative"),
        ("[TrainingStalled]\nseconds = nan\n", "nan is not a number"),
        ("[TrainingStalled]\nseconds = inf\n", "inf is not a number"),
        ("[TrainingStalled]\nseconds = true\n", "True is not a number"),
        ('[TrainingStalled]\nseconds = "10m"\n', "'10m' is not a number"),
        (f"[TrainingStalled]\nseconds = 1{'0' * 400}\n", "is not a number"),
        ("[GpuXidRepeated]\nbursts = 2.5\n", "[GpuXidRepeated] bursts: 2.5 is not a whole number"),
        ('[GpuDown]\nexcept_hosts = "n("\n', "[GpuDown] except_hosts: 'n(' is not a regular expression"),
        ("[GpuDown]\nexcept_hosts = 'n\"'\n", "is not a regular expression of names"),
        ('[GpuDown]\nexcept_models = "(?=A)"\n', "is not a regular expression of names"),
        ('[GpuDown]\nexcept_models = "A*+"\n', "is not a regular expression of names"),
        ('[GpuDown]\nexcept_models = "${price}"\n', "is not a regular expression of names"),
        ("[GpuDown]\nexcept_models = 1\n", "is not a regular expression of names"),
        ('[TrainingStalled]\nexcept_hosts = "n1"\n', "[TrainingStalled] except_hosts: no such setting"),
        ('[price]\ncurrency = "\\""\n', "[price] currency: "),
        ('[price]\nper_gpu_hour = "2.5"\n', "[price] per_gpu_hour: '2.5' is not a number"),
        ('for = "5m"\n', "for: not in a table"),
        ('[[GpuDown]]\nfor = "5m"\n', "GpuDown: not in a table"),
        ("[GpuDown\n", "not TOML: "),
        (b"\xff\xfe", "not UTF-8"),
        (b"#" * (2 << 20), "larger than 1 MiB"),
    ],
)
def test_invalid_setting_is_refused_with_file_and_reason(
    written: Callable[[str | bytes], Path], content: str | bytes, message: str
) -> None:
    path = written(content)
    with pytest.raises(InputError) as refused:
        load_thresholds(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert message in str(refused.value)
    assert len(str(refused.value)) < 500 + len(str(path))


def test_missing_file_or_folder_is_named_in_the_error(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(InputError, match=re.escape(str(path))):
            load_thresholds(path)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (600, "10 minutes"),
        (5400, "1 hour 30 minutes"),
        (86461.5, "1 day 1 minute 1.5 seconds"),
        (1, "1 second"),
        (0, "0 seconds"),
    ],
)
def test_durations_are_written_in_words(seconds: float, words: str) -> None:
    assert duration_text(seconds) == words


@pytest.mark.parametrize(
    ("text", "length"), [("90s", 90), ("1h30m", 5400), ("1w", 604800), ("500ms", 0.5), ("0s", 0), ("USD", None)]
)
def test_durations_follow_the_prometheus_format(text: str, length: float | None) -> None:
    assert duration_seconds(text) == length


def test_invalid_thresholds_are_a_one_line_error_with_status_3(cli: Cli, written: Callable[[str], Path]) -> None:
    completed = cli("alerts", "rules", "show", "--thresholds", written("[GpuDwn]\n"))
    assert (completed.returncode, completed.stdout) == (3, "")
    assert len(completed.stderr.splitlines()) == 1
    completed = cli("alerts", "rules", "thresholds")
    assert completed.stdout == default_text()
