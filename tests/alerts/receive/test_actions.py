"""Requests to runs because of alerts: only those that the configuration allows, once each, and rate-limited."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.alerts.receive.worker_world import WorkerWorld
from tests.played_ranks import two_ranks

from rankscope.alerts.payload import PayloadAlert
from rankscope.alerts.receive.actions import action_runner as action_runner_module
from rankscope.alerts.receive.actions.action_runner import ActionRunner, _run_of, _RunningAction
from rankscope.alerts.receive.actions.results import merged_steps
from rankscope.alerts.receive.bounded_child import ChildResult
from rankscope.alerts.receive.config import ActionRule
from rankscope.alerts.receive.counters import Counters
from rankscope.alerts.receive.verdicts.known_runs import KnownRun, KnownRuns, UnmatchedRunError
from rankscope.alerts.receive.verdicts.run_verdict import RunVerdict

CAPTURE = ActionRule(alert="TrainingStraggler", do="capture", at_most="1/10min per run", at_most_overall="2/1h")
DUMP = ActionRule(alert="TrainingStraggler", do="dump")


def test_capture_is_requested_once_per_episode() -> None:
    world = WorkerWorld(CAPTURE)
    ((_, words),) = world.receive(world.alert())
    assert "next 3 steps" in words["capture_request"]
    (action,) = world.inbox.actions("wanted")
    assert (action.kind, action.run_id, action.steps) == ("capture", "r1", 3)
    world.receive(world.alert(), after_s=5 * 3600)
    assert len(world.inbox.actions("wanted")) == 1
    # and a second request when the alert fires again
    world.receive(world.alert("resolved"), after_s=60)
    world.receive(world.alert(starts=990_000), after_s=7200)
    assert len(world.inbox.actions("wanted")) == 2


def test_captures_are_limited_per_run_and_in_total() -> None:
    world = WorkerWorld(CAPTURE)
    result = world.receive(*(world.alert(rank=str(rank)) for rank in range(3)))
    assert sum("follows" in words["capture_request"] for _, words in result) == 1
    assert sum("limit of 1/10min per run" in words["capture_request"] for _, words in result) == 2
    asked = [words["capture_request"] for run in "bcd" for _, words in world.receive(world.alert(run_id=run))]
    assert ["follows" in item for item in asked] == [True, False, False]
    assert "2/1h" in asked[1]
    # an hour later the rate limit allows another one
    ((_, words),) = world.receive(world.alert(run_id="e"), after_s=3601)
    assert "follows" in words["capture_request"]


def test_two_rules_of_one_kind_make_one_request() -> None:
    world = WorkerWorld(CAPTURE, ActionRule(alert="TrainingStraggler", do="capture", steps=9), DUMP)
    world.receive(world.alert())
    assert [(action.kind, action.steps) for action in world.inbox.actions("wanted")] == [("capture", 3), ("dump", 3)]


def test_rate_limit_counts_a_run_once_by_name_or_id() -> None:
    world = WorkerWorld(CAPTURE)
    world.worker._analyst = SimpleNamespace(verdict=lambda _: RunVerdict(run_id="r1", problem="damaged"))  # type: ignore[assignment]
    ((_, first),) = world.receive(world.alert(run_id=""))
    ((_, second),) = world.receive(world.alert(run=""))
    assert "follows" in first["capture_request"]
    assert second["capture_request"].startswith("not requested")
    assert "1/10min per run" in second["capture_request"]


def test_clock_set_back_does_not_block_captures() -> None:
    world = WorkerWorld(CAPTURE)
    for number in range(2):
        world.receive(world.alert(run_id=str(number)), after_s=365 * 86400)
    ((_, words),) = world.receive(world.alert(run_id="now"), after_s=-2 * 365 * 86400)
    assert "follows" in words["capture_request"]


def acting(world: WorkerWorld, *rules: ActionRule, shown: list[str]) -> ActionRunner:
    return ActionRunner(world.inbox, runs=KnownRuns([]), rules=rules, counters=Counters(), show=shown.append, report=shown.append)


def test_action_disallowed_by_a_new_configuration_is_not_run() -> None:
    world, shown = WorkerWorld(CAPTURE), list[str]()
    world.receive(world.alert())
    # given a restart with a configuration that allows captures only for another team
    runner = acting(world, ActionRule(alert="TrainingStraggler", do="capture", match={"team": "a"}), shown=shown)
    runner.run_due()
    assert world.inbox.actions("wanted", "requested", "recorded") == []
    assert "the receiver's file does not allow it any more" in shown[0]


@pytest.mark.parametrize(
    "annotations", [{"summary": "[simulated GPUs] It stands."}, {"simulated": "true", "summary": "It stands."}]
)
def test_follow_up_keeps_simulated_mark_and_next_steps_of_the_alert(annotations: dict[str, str]) -> None:
    world, shown = WorkerWorld(CAPTURE), list[str]()
    world.receive(world.alert() | {"annotations": {**annotations, "next": "py-spy dump --pid 26401   (rank 1, on n1)"}})
    runner = acting(world, CAPTURE, shown=shown)
    runner._forwarding = world.worker._forwarding
    runner.run_due()
    ((_, words),) = world.wait(1)
    assert words["summary"].startswith("[simulated GPUs] No capture: ")
    assert words["simulated"] == "true"
    assert words["next"] == "py-spy dump --pid 26401   (rank 1, on n1)"


def test_merged_steps_have_no_duplicates_and_prefer_known_pids() -> None:
    stack, culprit, unnamed = (f"py-spy dump --pid {who}" for who in ("1   (rank 1)", "5   (rank 5)", "PID shows where it is"))
    own = f"rankscope hang r\n{stack}"
    assert merged_steps(own, f"{unnamed}\nrankscope analyze r") == f"{own}\nrankscope analyze r"
    assert merged_steps(own, f"{culprit}\n{unnamed}\n{stack}") == f"{culprit}\n{stack}\nrankscope hang r"
    assert merged_steps("", unnamed) == unnamed
    assert merged_steps("", "") == ""


def test_action_uses_the_run_that_was_matched_by_name(tmp_path: Path) -> None:
    world = WorkerWorld(CAPTURE)
    world.worker._analyst = SimpleNamespace(verdict=lambda _: RunVerdict(run_id="r1", by_name=True, problem="damaged"))  # type: ignore[assignment]
    ((_, words),) = world.receive(world.alert(run_id="", run="test"))
    assert words["no_verdict"].startswith("Run r1, ")
    assert words["no_verdict"].endswith(": damaged")
    assert words["found_by_name"] == "r1"
    # when a second run of that name has begun before the action is due
    two_ranks(tmp_path / "one")
    two_ranks(tmp_path / "two", run_id="r2")
    runs = KnownRuns([tmp_path])
    (action,) = world.inbox.actions("wanted")
    alert = msgspec.json.decode(action.alert, type=PayloadAlert)
    assert runs.find(_run_of(action, alert)).run_id == "r1"
    # an action whose run was not looked up in time has only the name
    with pytest.raises(UnmatchedRunError, match="are 2"):
        runs.find(_run_of(msgspec.structs.replace(action, run_id="test"), alert))


def test_internal_fault_frees_the_slot_of_its_action(monkeypatch: pytest.MonkeyPatch) -> None:
    world, shown = WorkerWorld(CAPTURE), list[str]()
    world.receive(world.alert())
    runner = acting(world, CAPTURE, shown=shown)
    (action,) = world.inbox.actions("wanted")
    ended: list[bool] = []
    child: Any = SimpleNamespace(poll=lambda: ChildResult(0, b"{}", ""), end=lambda: ended.append(True))
    runner._running[action.number] = _RunningAction(action, KnownRun(Path("/"), "r1", "", simulated=False), child)
    monkeypatch.setattr(action_runner_module, "capture_result", lambda *_, **__: 1 / 0)
    runner.run_due()
    runner.run_due()
    assert (runner._running, ended) == ({}, [True])
    [line] = shown
    assert all(fact in line for fact in ("internal fault", f"action {action.number} ", "ZeroDivisionError"))
    assert world.inbox.actions("wanted") == [action]


def test_other_alerts_and_alerts_without_a_run_request_no_action() -> None:
    world = WorkerWorld(CAPTURE)
    assert len(world.receive(world.alert(alertname="GpuDown"), world.alert(run_id="", run=""))) == 2
    assert world.inbox.actions("wanted") == []


def test_finished_action_keeps_no_alert_body() -> None:
    world = WorkerWorld(CAPTURE)
    world.receive(world.alert())
    (action,) = world.inbox.actions("wanted")
    recorded = world.inbox.move(action, "recorded", result=b"{}")
    assert recorded.alert == action.alert
    world.inbox.move(recorded, "done")
    (completed,) = world.inbox.actions("done")
    assert (completed.alert, completed.result) == (b"", None)
    assert world.inbox.has_action("capture", action.fingerprint, action.starts_unix_ns)
