"""The receiver with runs: it enriches alerts, requests each capture once, and sends what the capture shows."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.alerts.receive.receiver_process import ListeningTarget, ReceiverProcess, straggler
from tests.dumped_job import DumpedJob
from tests.played_ranks import accept, job, profile, two_ranks
from tests.profiler.live_job import begin
from tests.waiting import wait_until

from rankscope.runs.control import ControlAnswer, ControlRequest, answer
from rankscope.runs.paths import flight_dir, rank_dir

pytestmark = pytest.mark.slow

QUICK = "import rankscope.alerts.receive.actions.action_runner as runner; runner.POLL_S = 0.05"
CONFIG = """
[receive]
dashboard_url = "https://rankscope.example"
runs = ["runs"]
enrich_within = "30s"

[[target]]
name = "chat"
url = "{url}"

[[action]]
alert = "TrainingStraggler"
do = "capture"
steps = {steps}
wait = "120s"
"""


@pytest.fixture
def receiver(tmp_path: Path, target: ListeningTarget) -> Iterator[ReceiverProcess]:
    (tmp_path / "runs").mkdir()
    with ReceiverProcess(tmp_path, CONFIG.format(url=target.url, steps=2), settings=QUICK) as receiver:
        yield receiver


def delivered(target: ListeningTarget) -> list[dict[str, Any]]:
    """Return the alerts without duplicates: an alert delivered just before the receiver was killed arrives twice."""
    collected: list[dict[str, Any]] = []
    for alert in target.alerts:
        if alert not in collected:
            collected.append(alert)
    return collected


def alerts_with(target: ListeningTarget, **annotations: str | None) -> list[dict[str, Any]]:
    """Return the different alerts with these annotations; ``None`` stands for any value."""
    return [
        alert
        for alert in delivered(target)
        if all(
            alert["annotations"].get(name, "") == text if text else name in alert["annotations"]
            for name, text in annotations.items()
        )
    ]


def pass_another(receiver: ReceiverProcess, target: ListeningTarget) -> None:
    """Post another alert and wait until it is forwarded, which is after everything that was due before."""
    receiver.post(straggler("", alertname="GpuTooHot"))
    wait_until(lambda: any(alert["labels"]["alertname"] == "GpuTooHot" for alert in target.alerts))


@pytest.mark.full
def test_capture_result_follows_the_alert_even_after_a_kill(
    receiver: ReceiverProcess, target: ListeningTarget, tmp_path: Path
) -> None:
    run = two_ranks(tmp_path / "runs" / "one")
    answering_now: list[bool] = []

    def serve(run: Path, request: ControlRequest) -> None:
        # given ranks that answer only after the receiver was killed and restarted
        wait_until(lambda: answering_now)
        accept(run, request)
        for rank in (0, 1):
            profile(run, rank, request.steps)

    with job(run, serve) as seen:
        assert receiver.post(straggler("r1")).status_code == 200
        wait_until(lambda: seen)
        receiver.kill()
        receiver.start()
        assert receiver.post(straggler("r1")).status_code == 200
        answering_now.append(True)
        (follow_up,) = wait_until(lambda: alerts_with(target, capture_outcome=None))
        pass_another(receiver, target)
    # then one request was made, by either of the two processes
    assert [request.steps for request in seen] == [2]
    assert "TrainingStraggler" in str(seen[0].note)
    # the alert was sent at once and only once, with a verdict or the reason why there is none
    (first,) = alerts_with(target, capture_request=None)
    assert "verdict" in first["annotations"]
    assert first["annotations"]["dashboard_url"] == "https://rankscope.example/run/r1?rank=1"
    assert first["annotations"]["summary"] == "Rank 1 makes the others wait."
    # and the follow-up has the same identity, and the result of the profiled steps
    assert len(delivered(target)) == 3  # with the alert of pass_another
    assert (follow_up["labels"], follow_up["startsAt"], follow_up["fingerprint"]) == (
        first["labels"],
        first["startsAt"],
        first["fingerprint"],
    )
    words = follow_up["annotations"]
    assert words["capture_outcome"] == "shown"
    assert words["verdict_rank"] == "1"
    assert "Rank 1" in words["summary"]
    assert words["capture_steps"] == "70-71"
    assert all(fact in words["imposed_wait"] for fact in ("400 ms per step", "rank 1", "100%"))
    assert all(fact in words["overlap"] for fact in ("rank 1 hides 20%", "others 20%"))
    assert words["dashboard_url"] == "https://rankscope.example/run/r1/timeline?rank=1&window=70"


def test_refused_capture_is_reported_and_missing_runs_get_no_request(
    receiver: ReceiverProcess, target: ListeningTarget, tmp_path: Path
) -> None:
    run = two_ranks(tmp_path / "runs" / "one")

    def serve(run: Path, request: ControlRequest) -> None:
        answer(run, ControlAnswer(id=request.id, accepted=False, reason="busy\x1b[2J", answered_unix_ns=1))

    with job(run, serve):
        receiver.post(straggler("r1"), straggler("../../etc"), straggler("y" * 100_000))
        wait_until(lambda: alerts_with(target, capture_outcome=None))
    (refused,) = alerts_with(target, capture_outcome="refused")
    assert "busy" in refused["annotations"]["summary"]
    assert "\x1b" not in refused["annotations"]["summary"]
    # and missing runs get no request
    missing = [alert for alert in alerts_with(target, no_verdict=None) if alert["labels"]["run_id"] != "r1"]
    assert len(missing) == 2
    assert not any("capture_request" in alert["annotations"] for alert in missing)
    assert receiver.count('actions_total{kind="capture",outcome="refused"}') == 1


def test_hung_run_is_dumped_and_the_culprit_is_named(tmp_path: Path, target: ListeningTarget) -> None:
    # given a job in which rank 1 never enters a collective
    run = two_ranks(tmp_path / "runs" / "one", simulated=True)
    hung = DumpedJob.of_events({"0": (0, 1)}, ["0"] * 3, stops={1: 1}).dumps()

    def serve(run: Path, request: ControlRequest) -> None:
        flight_dir(run, 0).mkdir()
        for rank in (0, 1):
            (flight_dir(run, 0) / f"rank-{rank:05d}-{request.id}-nccl.pickle").write_bytes(pickle.dumps(hung[rank], protocol=2))
            answer(run, ControlAnswer(id=request.id, accepted=True, answered_unix_ns=1), rank=rank)

    config = (
        CONFIG.format(url=target.url, steps=2).replace('"TrainingStraggler"', '"TrainingHang"').replace('"capture"', '"dump"')
    )
    with ReceiverProcess(tmp_path, config, settings=QUICK) as receiver, job(run, serve) as seen:
        alert = straggler("", alertname="TrainingHang", rank="", run="test")
        receiver.post(alert | {"annotations": {"summary": "It stands.", "next": f"rankscope hang {run}\nAsk Ann."}})
        (follow_up,) = wait_until(lambda: alerts_with(target, dump_outcome=None))
    assert [request.kind for request in seen] == ["dump"]
    words = follow_up["annotations"]
    assert words["dump_outcome"] == "shown", words
    assert (words["verdict_rank"], words["verdict_host"]) == ("1", "node1")
    assert words["collectives"] == "all_reduce"
    assert words["summary"].startswith("[simulated GPUs] Run r1, ")
    assert "Rank 1" in words["summary"]
    assert words["simulated"] == "true"
    # the next steps begin with the rank's process, and keep the alert's own step
    steps = words["next"].splitlines()
    assert steps[:3] == ["py-spy dump --pid 101   (rank 1, on node1)", f"rankscope hang {run}", "Ask Ann."]
    assert not any("PID" in step for step in steps)
    # the alert had only the run's name, and both messages name the run that was found
    (first,) = alerts_with(target, dump_request=None)
    assert (first["annotations"]["found_by_name"], words["found_by_name"]) == ("r1", "r1")
    assert "Run r1, " in first["annotations"]["verdict"]


@pytest.mark.full
def test_slow_analysis_delays_no_alert_and_the_verdict_follows(tmp_path: Path, target: ListeningTarget) -> None:
    two_ranks(tmp_path / "runs" / "one")
    # given a time limit shorter than any analysis
    config = CONFIG.format(url=target.url, steps=2).partition("[[action]]")[0].replace('"30s"', '"0.01ms"')
    with ReceiverProcess(tmp_path, config, settings=QUICK) as receiver:
        receiver.post(straggler("r1"), {**straggler("r1"), "labels": {"alertname": "GpuDown"}})
        wait_until(lambda: len(delivered(target)) >= 2)
        # also if the receiver was killed in between
        receiver.kill()
        receiver.start()
        (follow_up,) = wait_until(lambda: alerts_with(target, verdict=None))
        pass_another(receiver, target)
    (late,) = alerts_with(target, no_verdict=None)
    assert "within 1e-05 s" in late["annotations"]["no_verdict"]
    assert (follow_up["labels"], follow_up["startsAt"]) == (late["labels"], late["startsAt"])
    assert len(delivered(target)) == 4  # with the alert of pass_another


@pytest.mark.full
@pytest.mark.usefixtures("require_torch")
def test_an_alert_about_a_real_straggler_is_followed_by_rank_and_cause(tmp_path: Path, target: ListeningTarget) -> None:
    # given two ranks that train; rank 1 takes longer in backward, by more than the noise of this machine, and the capture has
    # enough steps (one collective each) that rank 1 cannot be last at most of them by chance
    run = tmp_path / "runs" / "real"
    run.parent.mkdir()
    training = begin(run, pause_s=0.3)
    receiver = ReceiverProcess(tmp_path, CONFIG.format(url=target.url, steps=30))
    try:
        receiver.start()
        for rank in (0, 1):
            wait_until((rank_dir(run, 0, rank) / "steps-000000.npy").exists, process=training)
        # when the alert of Prometheus' rule arrives
        assert receiver.post(straggler("r")).status_code == 200
        (follow_up,) = wait_until(lambda: alerts_with(target, capture_outcome=None))
    finally:
        receiver.kill()
        training.send_signal(signal.SIGTERM)
        training.communicate(timeout=120)
    # then the follow-up names the rank
    words = follow_up["annotations"]
    assert words["capture_outcome"] == "shown", words
    assert words.get("verdict_rank") == "1", words
    assert words["cause"] == "host"
    assert "Rank 1 on host" in words["summary"]
    assert "for rank 1" in words["imposed_wait"]
    assert "overlap" in words
    assert "all_reduce" in words["collectives"]
    first, last = map(int, words["capture_steps"].split("-"))
    assert last == first + 29
    assert words["dashboard_url"].endswith(f"window={first}")
