"""Replay: which alerts the watcher would have fired over a recorded run."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest
from tests.command_line import Cli
from tests.step_files import damage, load, save, steps_file

from rankscope.alerts.replay.growing_run import GrowingRun
from rankscope.alerts.replay.replay import DEFAULTS, replay_run
from rankscope.alerts.replay.replay_result import RuleHistory, replay_text
from rankscope.alerts.watch.conditions.budgets import Budgets
from rankscope.alerts.watch.ledger import FiringPolicy
from rankscope.alerts.watch.liveness.monitor import Patience
from rankscope.alerts.watch.watcher_settings import WatcherSettings
from rankscope.alerts.watcher_alerts import WATCHER_ALERTS
from rankscope.base.errors import InputError
from rankscope.base.progress import progress_line
from rankscope.runs.paths import rank_dir
from rankscope.runs.reader import RunReader

START_NS = 1_700_000_000_000_000_000
SECOND = 10**9


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def minute_of(make_run: Callable[..., Any], *, slow: int | None = 2) -> Any:
    """Return a run of 60 s, recorded to its end."""
    run = make_run(slow=slow)
    run.grow(540)
    run.end(end_unix_ns=START_NS + 60 * SECOND)
    return run


def replayed(run: Path, options: WatcherSettings = DEFAULTS) -> RuleHistory:
    """Return the result of the straggler rule replayed over a run."""
    [rule] = replay_run(run, ["TrainingStraggler"], options=options).rules
    return rule


# The watcher over a run --------------------------------------------------------------------------------------------------------


def test_a_straggler_fires_after_three_evaluations_and_ends_with_the_run(make_run: Callable[..., Any]) -> None:
    # Given a run of 60 s in which rank 2 was slow, recorded to its end
    run = minute_of(make_run)
    before = everything(run.path)

    # When it is replayed
    rule = replayed(run.path)

    # Then the alert was pending once there were enough steps, fired two evaluations later, and ended with the run
    [spell] = rule.spells
    assert spell.labels == {
        "alertname": "TrainingStraggler", "severity": "warning", "run_id": "llama-1", "run": "llama", "rank": "2", "host": "node1"
    }  # fmt: skip
    assert START_NS < spell.pending_unix_ns <= START_NS + 20 * SECOND
    assert spell.fired_unix_ns == spell.pending_unix_ns + 10 * SECOND
    assert spell.ended_unix_ns == START_NS + 60 * SECOND

    # And its annotations are the watcher's, with the path of the run and the numbers
    assert spell.annotations["summary"].startswith("Rank 2 on host node1")
    assert str(run.path) in spell.annotations["next"]
    assert {value.name for value in spell.values} >= {"slowdown", "confidence", "imposed_wait"}

    # And nothing was written into the run
    assert everything(run.path) == before


def test_commands_quote_the_run_path_for_the_shell(make_run: Callable[..., Any], tmp_path: Path) -> None:
    run = make_run(slow=2)
    run.grow(240)
    moved = run.path.rename(tmp_path / "bob's runs")

    [spell] = replayed(moved).spells

    assert f"rankscope dashboard {shlex.quote(str(moved))}" in spell.annotations["next"].splitlines()


def test_policy_determines_when_an_alert_fires(make_run: Callable[..., Any]) -> None:
    run = minute_of(make_run)

    [eager] = replayed(run.path, WatcherSettings(policy=FiringPolicy(fire_after=1))).spells
    [calm] = replayed(run.path, WatcherSettings(interval_s=10.0, policy=FiringPolicy(fire_after=4))).spells

    # One evaluation for the suspicion, and one for the new steps that confirm it
    assert eager.fired_unix_ns == eager.pending_unix_ns + 5 * SECOND
    assert calm.fired_unix_ns == calm.pending_unix_ns + 30 * SECOND


@pytest.mark.slow
def test_a_straggler_fires_once_32_new_steps_confirm_it(make_run: Callable[..., Any]) -> None:
    # Given a rank that is slow in all steps, of which there are ten per evaluation
    run = minute_of(make_run)

    [spell] = replayed(run.path, WatcherSettings(interval_s=1.0)).spells

    # Then the fourth evaluation after the first verdict has 40 new steps
    assert spell.fired_unix_ns == spell.pending_unix_ns + 4 * SECOND


def test_patience_and_budgets_determine_the_fired_alerts(make_run: Callable[..., Any]) -> None:
    # Given a run that stalled after a minute, with a twentieth of each step spent waiting for data
    run = make_run(slow=None)
    run.grow(600)

    def fired(options: WatcherSettings) -> list[str]:
        results = replay_run(run.path, ["TrainingHang", "TrainingInputBound"], options=options).rules
        return [result.rule for result in results if any(spell.fired_unix_ns for spell in result.spells)]

    assert fired(DEFAULTS) == ["TrainingHang"]
    assert fired(WatcherSettings(patience=Patience(silent_after_s=1500.0))) == []
    assert fired(WatcherSettings(budgets=Budgets(input=0.02))) == ["TrainingHang", "TrainingInputBound"]


def test_healthy_run_fires_no_alert(make_run: Callable[..., Any]) -> None:
    run = minute_of(make_run, slow=None)

    replay = replay_run(run.path)

    assert {rule.rule for rule in replay.rules} == set(WATCHER_ALERTS)
    assert [rule.rule for rule in replay.rules if rule.spells] == []
    assert replay.evaluations == 12
    assert replay.notes == []


@pytest.mark.slow
def test_an_alert_ends_when_the_rank_recovers_and_fires_again(make_run: Callable[..., Any]) -> None:
    # Given a rank that is slow for one minute, normal for two, and slow again
    run = make_run(slow=2)
    run.grow(540)
    run.slow = None
    run.grow(1200)
    run.slow = 2
    run.grow(600)
    run.end(end_unix_ns=START_NS + 240 * SECOND)

    # When it is replayed; the watcher judges only the last 500 steps
    spells = replayed(run.path).spells

    # Then there are two alerts, one after the other
    first, second = [spell for spell in spells if spell.fired_unix_ns is not None]
    assert first.ended_unix_ns is not None
    assert second.fired_unix_ns is not None
    assert START_NS + 60 * SECOND < first.ended_unix_ns < second.fired_unix_ns
    assert second.ended_unix_ns == START_NS + 240 * SECOND


def test_alerts_of_an_interrupted_run_end_one_hour_later(make_run: Callable[..., Any]) -> None:
    run = make_run(slow=2)
    run.grow(540)

    [spell] = replayed(run.path).spells

    assert spell.ended_unix_ns == START_NS + (60 + 3600) * SECOND


def test_hung_run_fires_after_two_minutes(make_run: Callable[..., Any]) -> None:
    # Given a run that made steps for a minute, and whose end was not recorded
    run = make_run(slow=None)
    run.grow(540)

    [rule] = replay_run(run.path, ["TrainingHang"]).rules

    # Then it would have fired after the patience of two minutes and three evaluations
    [spell] = rule.spells
    assert spell.fired_unix_ns is not None
    assert 120 * SECOND <= spell.fired_unix_ns - (START_NS + 60 * SECOND) <= 140 * SECOND


def test_damaged_records_do_not_hide_the_straggler(make_run: Callable[..., Any]) -> None:
    # Given torn records, and one record with a time in the year 2200
    run = minute_of(make_run)
    first = steps_file(run.path, 1)
    rows = load(first)
    far = rows[10:11].copy()
    far["start_unix_ns"] = 7_258_118_400 * SECOND
    save(first, np.concatenate([rows[:1], rows, far]))
    damage(first, 0)
    with first.open("ab") as end:
        end.write(bytes(7))

    [spell] = replayed(run.path).spells

    assert spell.fired_unix_ns is not None
    assert spell.ended_unix_ns == START_NS + 60 * SECOND


def test_unreadable_rank_is_noted_and_others_are_judged(make_run: Callable[..., Any]) -> None:
    run = minute_of(make_run)
    lost = rank_dir(run.path, 0, 3)
    shutil.rmtree(lost)
    lost.symlink_to(lost.name)

    replay = replay_run(run.path)

    assert replay.rules[0].spells[0].labels["rank"] == "2"
    [note] = replay.notes
    assert note.startswith(f"{lost}: Too many levels of symbolic links")


def test_insufficient_data_is_noted(make_run: Callable[..., Any]) -> None:
    run = make_run()
    for rank in range(4):
        for file in rank_dir(run.path, 0, rank).glob("steps-*"):
            file.unlink()

    assert replay_run(run.path).notes == ["nothing could be judged: too few steps of too few ranks are recorded"]


@pytest.mark.parametrize("parts", [1, 7, 60])
def test_fully_grown_copy_equals_the_run(make_run: Callable[..., Any], tmp_path: Path, parts: int) -> None:
    run = make_run(slow=2)
    run.grow(240)
    run.end(end_unix_ns=START_NS + 30 * SECOND)
    (tmp_path / "copy").mkdir()
    growing = GrowingRun(run.path, tmp_path / "copy", latest_unix_ns=START_NS + 10**15)

    for part in range(1, parts + 1):
        moment = START_NS + 31 * SECOND * part // parts
        growing.advance(moment)
        reader = RunReader(growing.path)
        ends = [record.start_unix_ns + record.wall_us * 1e3 for rank in reader.ranks(0) for record in reader.steps(0, rank)]
        assert max(ends) <= moment

    assert growing.next_unix_ns is None
    whole, copy = RunReader(run.path), RunReader(growing.path)
    assert copy.infos(0) == whole.infos(0)
    for rank in range(4):
        assert list(copy.steps(0, rank)) == list(whole.steps(0, rank))


# The command -------------------------------------------------------------------------------------------------------------------


def test_command_prints_text_and_valid_json(make_run: Callable[..., Any], cli: Cli) -> None:
    run = minute_of(make_run)

    replay = ("alerts", "replay", run.path)
    text, json = cli(*replay), cli(*replay, "--rule", "TrainingStraggler", "--format", "json")

    assert "TrainingStraggler: would have fired once; fires after 3 evaluations" in text.stdout
    assert "rank 2, host node1" in text.stdout
    assert (text.stderr, text.returncode) == ("", 0)
    result = msgspec.json.decode(json.stdout)
    jsonschema.validate(result, msgspec.json.decode(cli("schema", "replay").stdout))
    assert result["schema"] == "rankscope.replay/1"
    assert result["rules"][0]["spells"][0]["fired_unix_ns"] > START_NS


def test_command_rejects_invalid_arguments(tmp_path: Path, cli: Cli) -> None:
    for arguments, status, says in (
        ([tmp_path / "nothing"], 3, "no such file"),
        ([tmp_path, "--budget", "input=lots"], 2, "input=lots: a share is a number"),
        ([tmp_path, "--interval", "9" * 400], 2, "at most 36500d"),
        ([tmp_path, "--rule", "GpuDown"], 2, "TrainingStraggler, "),
    ):
        completed = cli("alerts", "replay", *arguments)
        assert (completed.returncode, completed.stdout) == (status, ""), completed.stderr
        assert says in completed.stderr


def test_progress_line_is_erased_after_failure_and_escaped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    with suppress(InputError), progress_line() as say:
        say("a\x1b[31m\nb")
        raise InputError("x", "y")

    assert capsys.readouterr().err == "\r\x1b[Ka�[31m�b …\r\x1b[K"


def test_run_name_cannot_inject_terminal_escapes(make_run: Callable[..., Any]) -> None:
    run = make_run(name="a\x1b[31mb")
    run.end(end_unix_ns=START_NS + 10 * SECOND)

    assert "\x1b" not in replay_text(replay_run(run.path))
