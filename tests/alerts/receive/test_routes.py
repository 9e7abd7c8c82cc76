"""Which alerts are new, their routes, the parsing of notifications, and the inbox of deliveries; without sockets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some
from tests.alerts.receive.worker_world import STRAGGLER, S, WorkerWorld
from tests.played_ranks import end, two_ranks

from rankscope.alerts.alert import fingerprint, unix_ns
from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.receive import inbox as inbox_module
from rankscope.alerts.receive.config import Route
from rankscope.alerts.receive.episodes import Episode, next_episode
from rankscope.alerts.receive.forwarding import Forwarding
from rankscope.alerts.receive.inbox import Inbox
from rankscope.alerts.receive.notification import MAX_ALERTS, read_notification
from rankscope.alerts.receive.verdicts import known_runs as known_runs_module
from rankscope.alerts.receive.verdicts.known_runs import KnownRuns, RunName, UnmatchedRunError
from rankscope.alerts.store.database import AlertStore
from rankscope.runs.records import RunInfo
from rankscope.runs.small_files import create_run


def test_status_change_is_forwarded_and_repetition_is_not(world: WorkerWorld) -> None:
    firing, resolved = world.alert(), world.alert("resolved")
    assert len(world.receive(firing)) == 1
    assert world.receive(firing, after_s=60) == []
    assert world.receive(firing, after_s=3600) == []
    assert [status for status, _ in world.receive(resolved, after_s=60)] == ["resolved"]
    assert world.receive(resolved, after_s=60) == []


def test_reason_of_an_end_is_forwarded(world: WorkerWorld) -> None:
    world.receive(world.alert())
    over = {**world.alert("resolved"), "annotations": {"ended_because": "the run is over"}}
    assert world.receive(over, after_s=60) == [("resolved", {"ended_because": "the run is over"})]


def test_newer_details_of_an_alert_are_forwarded_once(world: WorkerWorld) -> None:
    world.receive(world.alert())

    def of(seconds: int) -> dict[str, Any]:
        words = {"culprit": "2", "updated_at": f"1970-01-12T13:46:{seconds:02d}.000Z"}
        return {**world.alert(), "annotations": words}

    assert world.receive(of(50), after_s=60) == [("firing", {"culprit": "2", "updated_at": "1970-01-12T13:46:50.000Z"})]
    # A repetition, or an older state from a second Alertmanager that is late, is not forwarded
    assert world.receive(of(50), after_s=60) == []
    assert world.receive(of(40), after_s=60) == []
    assert world.receive(world.alert(), after_s=60) == []
    assert len(world.receive(of(55), after_s=60)) == 1


def test_firing_alert_is_repeated_after_four_hours(world: WorkerWorld) -> None:
    world.receive(world.alert())
    (again,) = world.receive(world.alert(), after_s=4 * 3600 + 1)
    assert again == ("firing", {"reminder": "1", "updated_at": "1970-01-12T17:46:41.000Z"})
    assert world.receive(world.alert(), after_s=60) == []
    assert len(world.receive(world.alert(), after_s=4 * 3600 + 1)) == 1


def test_duplicates_from_two_alertmanagers_are_suppressed(world: WorkerWorld) -> None:
    assert len(world.receive(world.alert(starts=900_010))) == 1
    assert world.receive(world.alert(starts=900_000), after_s=1) == []
    assert len(world.receive(world.alert("resolved", starts=900_000), after_s=60)) == 1
    assert world.receive(world.alert("resolved", starts=900_010), after_s=1) == []
    # a copy of the firing alert that arrives after its end
    assert world.receive(world.alert(starts=900_000), after_s=1) == []


def test_alert_firing_again_with_the_same_start_is_forwarded(world: WorkerWorld) -> None:
    collected = []
    for number, starts in enumerate((900_000, 950_000, 950_000)):
        collected += world.receive(world.alert(starts=starts), after_s=3600)
        collected += world.receive(world.alert("resolved", starts=starts), after_s=3600)
        assert len(collected) == 2 * (number + 1)


def test_resolved_without_firing_is_not_forwarded(world: WorkerWorld) -> None:
    assert world.receive(world.alert("resolved")) == []


def test_resolved_without_a_start_time_ends_the_alert(world: WorkerWorld) -> None:
    world.receive(world.alert())
    assert [status for status, _ in world.receive(world.alert("resolved") | {"startsAt": ""}, after_s=60)] == ["resolved"]
    # and a firing alert without a start time does not count as late
    assert [status for status, _ in world.receive(world.alert() | {"startsAt": ""}, after_s=1)] == ["firing"]


def test_last_duplicate_in_one_delivery_counts(world: WorkerWorld) -> None:
    world.receive(world.alert(), world.alert("resolved", starts=900_001))
    episode = world.inbox.episode(fingerprint(STRAGGLER))
    assert episode is not None
    assert episode.status == "resolved"


@given(
    some.lists(some.tuples(some.sampled_from(["firing", "resolved"]), some.integers(0, 3), some.integers(0, 7200)), max_size=20)
)
def test_forwarded_states_alternate_beginning_with_firing(deliveries: list[tuple[Any, int, int]]) -> None:
    episode: Episode | None = None
    now = 10**9
    collected: list[str] = []
    for status, starts, pause in deliveries:
        now += pause
        episode, change = next_episode(
            episode, fingerprint="f", status=status, starts_unix_ns=starts * S, now_unix_ns=now * S, repeat_after_s=1e9
        )
        if change is not None:
            collected.append(status)
    assert collected == ["firing", "resolved"] * (len(collected) // 2) + ["firing"] * (len(collected) % 2)


def test_routes_select_the_targets() -> None:
    routes = (
        Route(match={"severity": "critical"}, targets=["pager", "chat"]),
        Route(match={"alertname": ["TrainingStraggler", "Other"], "team": ""}, targets=["chat"]),
        Route(match={"alertname": "Quiet"}, targets=[]),
    )
    forwarding = Forwarding(Outbox(AlertStore(None)), targets={"chat": 16, "pager": 1}, routes=routes)
    assert forwarding.targets_of({"severity": "critical"}) == ["pager", "chat"]
    assert forwarding.targets_of(STRAGGLER) == ["chat"]
    assert forwarding.targets_of(STRAGGLER | {"team": "a"}) == ["chat", "pager"]
    assert forwarding.targets_of({"alertname": "Quiet"}) == []


def test_thousand_alerts_at_once_are_all_forwarded(world: WorkerWorld) -> None:
    result = world.receive(*(world.alert(rank=str(rank)) for rank in range(1000)))
    assert len(result) == 1000


GRAFANA = {
    "receiver": "hooks", "status": "firing", "orgId": 1, "version": "1", "groupKey": "{}:{}", "truncatedAlerts": 2, "title": "t",
    "state": "alerting", "message": "m", "groupLabels": {}, "commonLabels": {}, "commonAnnotations": {},
    "externalURL": "http://grafana/",
    "alerts": [{
        "status": "firing", "labels": {"alertname": "Hot", "grafana_folder": "gpu"}, "annotations": {"summary": "85 °C"},
        "startsAt": "2024-05-01T12:00:00+02:00", "endsAt": "0001-01-01T00:00:00Z", "generatorURL": "http://grafana/a",
        "fingerprint": "c6eadffa33fcdf37", "silenceURL": "http://grafana/s", "dashboardURL": "http://grafana/d", "panelURL": "",
        "values": {"B": 85.0, "C": None}, "valueString": "[ var='B' value=85 ]", "imageURL": "http://grafana/i",
    }],
}  # fmt: skip


def test_grafana_payload_is_read_as_a_notification() -> None:
    notification = read_notification(msgspec.json.encode(GRAFANA))
    assert (notification.source, notification.truncated_alerts) == ("grafana", 2)
    (alert,) = notification.alerts
    assert unix_ns(alert.starts_at) == 1_714_557_600 * S
    assert alert.annotations == {
        "summary": "85 °C",
        "values": "[ var='B' value=85 ]",
        "silence_url": "http://grafana/s",
        "dashboard_url": "http://grafana/d",
    }


def test_missing_payload_fields_are_tolerated() -> None:
    body = {"version": "4", "status": "firing", "alerts": [{"status": "firing", "labels": {}, "annotations": None}]}
    (alert,) = read_notification(msgspec.json.encode(body)).alerts
    assert (alert.annotations, alert.starts_at) == ({}, "")
    many = {**body, "alerts": body["alerts"] * (MAX_ALERTS + 5)}  # type: ignore[operator]
    assert read_notification(msgspec.json.encode(many)).truncated_alerts == 5


@pytest.mark.parametrize("text", ["now", "9" * 5000, "2024-13-01T00:00:00Z", "\x00"])
def test_invalid_timestamp_counts_as_unknown(text: str) -> None:
    assert unix_ns(text) == 0


@pytest.mark.parametrize("text", ["", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"])
def test_alert_without_a_valid_start_is_forwarded(world: WorkerWorld, text: str) -> None:
    assert unix_ns(text) == 0
    assert len(world.receive({**world.alert(), "startsAt": text})) == 1


def test_runs_are_matched_by_run_id_and_not_by_path(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name, start in (("a", 1), ("b", 2)):
        create_run(root / name, RunInfo(run_id=f"id-{name}", name="llama", start_unix_ns=start))
    create_run(tmp_path / "outside", RunInfo(run_id="outside", name="outside", start_unix_ns=1))
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "inside").symlink_to(root / "a")
    (root / "circle").symlink_to(root / "circle")
    (root / "damaged").mkdir()
    (root / "damaged" / "run.json").write_bytes(b"{")
    runs = KnownRuns([root])
    assert runs.find(RunName("id-a", "")).path == root / "a"
    for name in ("outside", "../outside", str(root / "a"), "a", "link", "\x00", "id-a/../id-b"):
        with pytest.raises(UnmatchedRunError, match="not under"):
            runs.find(RunName(name, ""))
    # two folders with the same run id: neither is used
    create_run(root / "c", RunInfo(run_id="id-a", name="llama", start_unix_ns=1))
    with pytest.raises(UnmatchedRunError, match="2 folders"):
        runs.find(RunName("id-a", ""))


def test_run_name_matches_only_a_single_live_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = KnownRuns([tmp_path])
    old, first, second = (two_ranks(tmp_path / name, run_id=name) for name in ("old", "one", "two"))
    create_run(tmp_path / "begins", RunInfo(run_id="begins", name="test", start_unix_ns=1))
    end(old, 0, 1)
    end(first, 0)  # rank 1 still runs
    with pytest.raises(UnmatchedRunError, match="no run_id, and live runs of this name are 2"):
        runs.find(RunName("", "test"))
    end(second, 0, 1)
    assert runs.find(RunName("", "test")).run_id == "one"
    # a run that was quiet for too long does not count as live
    monkeypatch.setattr(known_runs_module, "QUIET_S", 0.0)
    with pytest.raises(UnmatchedRunError, match="are 0"):
        runs.find(RunName("", "test"))
    assert runs.find(RunName("old", "test")).run_id == "old"
    with pytest.raises(UnmatchedRunError, match="not under"):
        runs.find(RunName("", "other"))


def test_missing_folder_hides_no_other_run_and_prevents_name_match(tmp_path: Path) -> None:
    two_ranks(tmp_path / "here" / "one", run_id="one")
    away = tmp_path / "away"
    runs = KnownRuns([tmp_path / "here", away])
    assert runs.find(RunName("one", "test")).run_id == "one"
    gone = re.escape(f"{away} cannot be read: No such file or directory")
    with pytest.raises(UnmatchedRunError, match=f"not under the receiver's --runs; {gone}"):
        runs.find(RunName("two", "test"))
    with pytest.raises(UnmatchedRunError, match=f"are 1; {gone}"):
        runs.find(RunName("", "test"))
    # when the folder is back, its runs are found without a restart
    two_ranks(away / "two", run_id="two")
    assert runs.find(RunName("two", "test")).run_id == "two"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_number_of_remembered_alerts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "MAX_EPISODES", 3)
    world = WorkerWorld()
    for number in range(6):
        world.receive(world.alert(number=str(number)), after_s=1)
    world.inbox.prune(now_unix_ns=int(world.now_s * S))
    collected = [world.inbox.episode(fingerprint(STRAGGLER | {"number": str(number)})) is not None for number in range(6)]
    assert collected == [False] * 3 + [True] * 3


def test_inbox_prunes_old_deliveries(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "MAX_KEPT", 5)
    monkeypatch.setattr(inbox_module, "MAX_KNOWN", 8)
    with AlertStore(folder, report=pytest.fail) as store:
        inbox = Inbox(store)
        for number in range(1, 13):
            inbox.accept(b"x" * 1000, key=str(number), now_unix_ns=number)
        with store.transaction() as db:
            db.execute("UPDATE deliveries SET done_unix_ns = 0 WHERE number < 12")
        inbox.prune(now_unix_ns=1)
        # bodies of the last five, ids of the last eight
        assert [item.number for item in inbox.kept_deliveries()[1]] == [8, 9, 10, 11, 12]
        assert [inbox.accept(b"x", key=str(number), now_unix_ns=1) for number in (4, 5)] == [True, False]
        inbox.prune(now_unix_ns=2 * 86400 * S)
        assert inbox.accept(b"x", key="6", now_unix_ns=1)  # ids are kept for a day only
        assert [number for number, _ in inbox.waiting()] == [12, 13, 14]


def test_kept_bodies_are_bounded_in_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "MAX_KEPT_BYTES", 2500)
    with AlertStore(folder, report=pytest.fail) as store:
        inbox = Inbox(store)
        for number in range(1, 6):
            inbox.accept(b"x" * 1000, key=None, now_unix_ns=number)
        with store.transaction() as db:
            db.execute("UPDATE deliveries SET done_unix_ns = 0 WHERE number <> 2")
        inbox.prune(now_unix_ns=1)
        # the last two, and one delivery that is not processed yet
        assert store.query("SELECT number FROM deliveries WHERE body IS NOT NULL ORDER BY number") == [(2,), (4,), (5,)]
