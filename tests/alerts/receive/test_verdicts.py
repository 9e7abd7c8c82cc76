"""Alerts that wait for the verdict of their run, verdicts that come late, and the processes that analyse the runs."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.alerts.receive.worker_world import S, WorkerWorld
from tests.alerts.watch.watched_world import analysis_of
from tests.processes import is_running
from tests.waiting import wait_until

from rankscope.alerts.deliver.targets import TemplateName
from rankscope.alerts.deliver.templates import TEMPLATES
from rankscope.alerts.receive import worker as worker_module
from rankscope.alerts.receive.bounded_child import MEMORY_BYTES, BoundedChild
from rankscope.alerts.receive.config import ActionRule
from rankscope.alerts.receive.counters import Counters
from rankscope.alerts.receive.notification import read_notification
from rankscope.alerts.receive.verdicts import late_verdicts as late_module
from rankscope.alerts.receive.verdicts.late_verdicts import LateVerdicts
from rankscope.alerts.receive.verdicts.run_verdict import RunVerdict, run_verdict_of, verdict_annotations
from rankscope.alerts.rules.thresholds import SEVERITY_OF
from rankscope.analysis.result.analysis import Verdict


def test_alert_waits_for_a_verdict_up_to_a_deadline(world: WorkerWorld) -> None:
    world.worker._analyst = SimpleNamespace(verdict=lambda _: None)  # type: ignore[assignment]
    # given more alerts than one round handles, of runs without an analysis yet, and one alert without a run
    for number in range(70):
        assert world.receive(world.alert(run_id=str(number))) == []
    # then the alert without a run is sent at once
    assert len(world.receive(world.alert(run_id="", run="", alertname="GpuDown"))) == 1
    assert world.receive(world.alert("resolved", run_id="0"), after_s=10) == []  # the end does not overtake the firing
    # when the time for a verdict is over
    world.now_s += 10.0
    while world.worker.run_due():
        pass
    world.sender.run_due()
    # then all of them are sent without a verdict
    alerts = [alert for body in world.delivered for alert in msgspec.json.decode(body)["alerts"]]
    without = [alert for alert in alerts if alert["annotations"].get("no_verdict", "").endswith("within 20 s")]
    # the first alert ended before it was sent
    assert {alert["labels"]["run_id"] for alert in without} == {str(number) for number in range(1, 70)}


def test_waiting_deliveries_are_decoded_once(world: WorkerWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    by_key: dict[str, RunVerdict] = {}
    world.worker._analyst = SimpleNamespace(verdict=lambda named: by_key.get(named.run_id))  # type: ignore[assignment]
    decoded: list[bytes] = []

    def read(body: bytes) -> Any:
        decoded.append(body)
        return read_notification(body)

    monkeypatch.setattr(worker_module, "read_notification", read)
    # given deliveries that wait for a verdict, and one about the same alert, which must not overtake the first
    for number in range(5):
        world.receive(world.alert(run_id=str(number)))
    world.receive(world.alert("resolved", run_id="0"))
    assert len(decoded) == 6
    for _ in range(20):
        assert world.wait(0.5) == []
    assert len(decoded) == 6
    # when one verdict is there, only what it concerns is decoded again
    by_key["0"] = msgspec.structs.replace(VERDICT, run_id="0")
    assert world.wait(0.5) == []  # it ended before it was sent
    assert len(decoded) == 8
    by_key["1"] = msgspec.structs.replace(VERDICT, run_id="1")
    ((status, annotations),) = world.wait(0.5)
    assert (status, annotations["verdict"]) == ("firing", VERDICT.verdict.summary if VERDICT.verdict else "")
    assert len(decoded) == 9


VERDICT = RunVerdict(run_id="r1", verdict=Verdict(kind="straggler", rank=1, cause="input", summary="Rank 1 waits for its data."))


@pytest.fixture
def late(world: WorkerWorld) -> dict[str, RunVerdict | None]:
    """RunVerdict by run id that the worker finds; empty at first, changed by the test."""
    by_key: dict[str, RunVerdict | None] = {}
    analyst: Any = SimpleNamespace(verdict=lambda named: by_key.get(named.run_id))
    world.worker._analyst = analyst
    forwarding: Any = world.worker._forwarding
    world.worker._late = LateVerdicts(
        world.inbox, analyst, forwarding, counters=Counters(), dashboard_url=None, clock=lambda: int(world.now_s * S)
    )
    return by_key


def test_late_verdict_follows_once_under_the_same_alert(world: WorkerWorld, late: dict[str, RunVerdict | None]) -> None:
    world.receive(world.alert())
    ((status, first),) = world.wait(20)
    assert status == "firing"
    assert "not analysed within 20 s" in first["no_verdict"]
    assert world.wait(60) == []
    late["r1"] = VERDICT
    ((status, follow_up),) = world.wait(1)
    assert (status, follow_up["verdict"], follow_up["cause"]) == ("firing", "Rank 1 waits for its data.", "input")
    assert "no_verdict" not in follow_up
    assert follow_up["updated_at"] == "1970-01-12T13:48:01.000Z"
    assert world.wait(60) == []
    assert world.inbox.owed_verdicts() == []


def test_no_verdict_follows_ended_or_old_alerts_or_unanalysable_runs(
    world: WorkerWorld, late: dict[str, RunVerdict | None]
) -> None:
    for run in ("over", "damaged", "slow", "full"):
        world.receive(world.alert(run_id=run))
    late["full"] = RunVerdict(problem="alerts about too many runs arrived at once", late=True)
    assert len(world.wait(20)) == 4
    world.receive(world.alert("resolved", run_id="over"))
    late["over"], late["damaged"] = VERDICT, RunVerdict(problem="it is damaged")
    assert world.wait(1) == []
    assert [action.run_id for action in world.inbox.owed_verdicts()] == ["slow", "full"]
    late["slow"] = late["full"] = VERDICT
    assert world.wait(3600) == []
    assert world.inbox.owed_verdicts() == []


def test_number_of_owed_verdicts_is_bounded(
    world: WorkerWorld, late: dict[str, RunVerdict | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_module, "MOST_OWED", 3)
    world.receive(*(world.alert(run_id=run) for run in ("a", "b")))
    world.receive(*(world.alert(run_id=run) for run in ("c", "d")))
    collected = [words["no_verdict"] for _, words in world.wait(20)]
    assert ["follows" in item for item in collected] == [True, True, True, False]
    late.update(dict.fromkeys("abcd", VERDICT))
    assert len(world.wait(1)) == 3


def words_about(facts: RunVerdict, **labels: str) -> dict[str, str]:
    return verdict_annotations(facts, labels, dashboard_url="https://d.example")


OF_ONE_RANK = ("cause", "phase", "confidence", "slowdown", "next", "cost", "verdict_rank", "verdict_host", "gpu_uuid", "pattern")


def test_verdict_explains_only_alerts_about_its_rank() -> None:
    facts = run_verdict_of(analysis_of(2, 3, simulated=True))
    straggler = words_about(facts, alertname="TrainingStraggler", rank="2")
    assert (straggler["explained_by"], straggler["next"]) == ("cpu_contention", "look at the data loader")
    assert (straggler["verdict_rank"], straggler["gpu_uuid"]) == ("2", "GPU-2")
    # an alert of another straggler gets the finding of that rank
    other = words_about(facts, alertname="TrainingStraggler", rank="3")
    assert (other["cause"], other["verdict_rank"], "next" in other) == ("input", "3", False)
    # alerts of a lost or silent rank, a hang or a slowdown get one line
    for name, rank in (
        ("TrainingRankLost", "2"),
        ("RankSilent", "2"),
        ("TrainingHang", ""),
        ("TrainingStalled", ""),
        ("TrainingCrashed", ""),
        ("TrainingStepRegression", ""),
        ("TrainingInputBound", ""),
        ("TrainingStraggler", "0"),
        ("GpuDown", "2"),
        ("", ""),
    ):
        words = words_about(facts, alertname=name, rank=rank)
        assert words["verdict"].startswith("[simulated GPUs] Rank 2 "), name
        assert words["simulated"] == "true"
        assert [word for word in OF_ONE_RANK if word in words] == [], name
        assert words["dashboard_url"] == "https://d.example/run/llama-1" + (f"?rank={rank}" if rank else "")


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("input_bound", ["TrainingInputBound"]),
        ("communication_bound", ["TrainingCommunicationBound"]),
        ("host_bound", ["TrainingHostBound"]),
        ("hang", ["TrainingHang", "TrainingStalled", "TrainingHangSuspected"]),
        ("balanced", []),
    ],
)
def test_run_verdict_explains_only_alerts_of_the_same_kind(kind: Any, names: list[str]) -> None:
    facts = RunVerdict(verdict=Verdict(kind=kind, cause="host", confidence=0.9, summary="It does.", next=["do"]))
    collected = [name for name in SEVERITY_OF if "cause" in words_about(facts, alertname=name)]
    assert collected == names


@pytest.mark.parametrize("name", ["slack", "teams", "pagerduty"])
def test_message_contains_the_verdict_and_the_requested_capture(name: TemplateName) -> None:
    world = WorkerWorld(ActionRule(alert="TrainingStraggler", do="capture"))
    verdict = Verdict(
        kind="straggler", rank=1, cause="input", summary="Rank 1 on host n1 waits for its data.", next=["look there"]
    )
    facts = RunVerdict(run_id="r1", simulated=True, coverage=1.0, verdict=verdict, hosts={1: "n1"}, gpu_uuids={1: "GPU-1"})
    world.worker._analyst = SimpleNamespace(verdict=lambda _: facts)  # type: ignore[assignment]
    world.receive(world.alert())
    output = TEMPLATES[name](world.delivered[0], "key").decode()
    for words in (
        "[simulated GPUs] Rank 1 on host n1 waits for its data.",
        "n1",
        "GPU-1",
        "input",
        "look there",
        "the result follows",
    ):
        assert words in output, words


STARTED = """
import os, sys, threading, time
from rankscope.alerts.receive.bounded_child import BoundedChild

os.register_at_fork(after_in_child=lambda: print("Python ran between fork and exec", flush=True))

def start():
    child = BoundedChild(["alerts", "serve", "--listen", "127.0.0.1:0"], limit_s=600)
    print(child._process.pid, flush=True)
    time.sleep(600)

threading.Thread(target=start).start()
"""


@pytest.mark.slow
def test_child_process_is_limited_and_ends_with_the_receiver() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTED], stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        line = receiver.stdout.readline()
        assert line.strip().isdigit(), line
        pid = int(line)
        wait_until(lambda: "rankscope" in Path(f"/proc/{pid}/cmdline").read_text().split("\0"))
        wait_until(lambda: "-c" not in Path(f"/proc/{pid}/cmdline").read_text().split("\0"))
        limits = Path(f"/proc/{pid}/limits").read_text()
        receiver.send_signal(signal.SIGKILL)
    assert f"Max address space         {MEMORY_BYTES}" in limits
    assert "Max core file size        0 " in limits
    wait_until(lambda: not is_running(pid))


@pytest.mark.slow
def test_output_and_status_of_the_child_are_returned(tmp_path: Path, make_run: Callable[..., Any]) -> None:
    completed = BoundedChild(["analyze", str(make_run(slow=2).path), "--format", "json"], limit_s=120).wait()
    assert (completed.status, b'"rankscope.analysis/1"' in completed.output) == (0, True)
    failed = BoundedChild(["analyze", str(tmp_path / "none")], limit_s=120).wait()
    assert failed.status == 3
    assert "none" in failed.error
