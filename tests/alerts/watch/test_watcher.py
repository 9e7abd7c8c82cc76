"""The watcher over real run directories, with an analysis that the test sets."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.alerts.watch.watched_world import MakeWorld, analysis_of

from rankscope.alerts.store.database import AlertStore
from rankscope.alerts.store.folders import STORE_FILE
from rankscope.alerts.watch.followed_runs import FollowedRuns
from rankscope.alerts.watch.ledger import load_ledger, read_entries, save_ledger
from rankscope.alerts.watch.run_snapshots import RESTART_GRACE_S, RunObserver, RunSnapshot
from rankscope.alerts.watch.unreadable_files import SHOWN
from rankscope.alerts.watch.watcher import FINAL_TRIES, FORGET_AFTER_S
from rankscope.analysis.result.analysis import Analysis
from rankscope.base.errors import InputError
from rankscope.runs.paths import rank_dir, segment


def test_lasting_straggler_fires_once_and_resolves_once(make_world: MakeWorld) -> None:
    world = make_world()
    world.advance(analysis_of(2), times=4)
    assert world.heard == [("firing", "2")]
    world.advance(analysis_of(), times=4)
    assert world.heard == [("firing", "2"), ("resolved", "2")]
    assert world.event_names() == ["firing", "resolved"]
    assert world.watcher.ledger.entries == []


def test_intermittent_straggler_raises_no_alert(make_world: MakeWorld) -> None:
    world = make_world()
    for answer in [analysis_of(2), analysis_of()] * 5:
        world.advance(answer)
    assert world.receiver.calls == []


def test_run_without_a_straggler_sends_nothing(make_world: MakeWorld) -> None:
    world = make_world(slow=None)
    world.advance(analysis_of(), times=5)
    world.run.end()
    assert world.evaluate()
    assert world.receiver.calls == []
    assert not (world.run.path / "findings.jsonl").exists()


def test_run_is_followed_while_live_and_released_at_the_end(make_world: MakeWorld) -> None:
    world = make_world(slow=None)
    world.advance(analysis_of())
    assert (world.followed, world.kept) == ([world.run.path], [world.run.path])
    world.run.end()
    assert world.evaluate()
    assert (world.followed, world.kept) == ([world.run.path], [])
    assert world.analysed == [world.run.path, world.run.path]


def test_unchanged_run_is_not_analysed_again(make_world: MakeWorld) -> None:
    world = make_world()
    for _ in range(5):
        world.evaluate(analysis_of(2))
    assert world.analysed == [world.run.path]
    assert world.receiver.calls == []


def test_end_of_the_run_resolves_alerts_and_ends_the_watch(make_world: MakeWorld) -> None:
    world = make_world()
    assert not world.advance(analysis_of(2), times=2)
    world.run.end()
    assert world.evaluate()
    assert world.heard == [("firing", "2"), ("resolved", "2")]
    assert world.event_names() == ["firing", "verdict", "resolved"]


def test_a_run_too_short_for_the_hysteresis_is_reported_at_its_end(make_world: MakeWorld) -> None:
    world = make_world(fire_after=100)
    world.advance(analysis_of(2))
    world.run.end()
    assert world.evaluate()
    assert world.heard == [("firing", "2"), ("resolved", "2")]


def test_run_with_killed_ranks_ends_only_after_the_restart_grace(make_world: MakeWorld) -> None:
    world = make_world()
    world.advance(analysis_of(2), times=2)
    world.run.end("killed", end_unix_ns=int(world.now_s * 1e9))
    assert not world.evaluate()
    world.now_s += RESTART_GRACE_S
    assert world.evaluate()
    assert world.heard[-1] == ("resolved", "2")


def test_one_rank_still_running_keeps_the_run_alive(make_world: MakeWorld) -> None:
    world = make_world()
    world.run.end(ranks=range(3))
    assert not world.evaluate(analysis_of(2))


def test_once_reports_a_finished_run_without_resolving(make_world: MakeWorld) -> None:
    world = make_world(once=True, fire_after=1)
    world.run.end()
    world.evaluate(analysis_of(2))
    assert world.heard == [("firing", "2")]
    assert world.event_names() == ["verdict", "firing"]
    # A second watcher with the saved state does not notify the webhook again.
    world.restarted().evaluate(analysis_of(2))
    assert world.heard == [("firing", "2")]


def test_once_reports_an_earlier_crash(make_world: MakeWorld) -> None:
    world = make_world(once=True, fire_after=1)
    world.run.end("crash")
    world.evaluate(analysis_of())
    assert "TrainingCrashed" in world.firing()


def test_restart_keeps_start_and_identity_and_repeats_no_alert(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world()
    world.advance(analysis_of(2), times=2)
    with AlertStore(tmp_path / "state") as store:
        save_ledger(store, world.watcher.ledger)
    second = world.restarted()
    with AlertStore(tmp_path / "state") as store:
        assert load_ledger(store) == second.watcher.ledger
    second.advance(analysis_of(2))
    assert world.heard == [("firing", "2")]
    world.run.end()
    second.evaluate()
    [began], [ended] = world.receiver.calls
    assert began.alert.fingerprint == ended.alert.fingerprint
    assert began.alert.starts_at == ended.alert.starts_at


def test_failed_delivery_is_reported_once_and_retried(make_world: MakeWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world = make_world()
    world.receiver.broken = True
    world.advance(analysis_of(2), times=4)
    assert [line for line in world.reports if "answered 500" in line] == world.reports[:1]
    assert world.watcher.flush() == ["told"]
    world.receiver.broken = False
    world.advance(analysis_of(2), times=4)
    assert world.heard == [("firing", "2")]
    assert "delivered after" in caplog.messages[-1]
    assert world.watcher.flush() == []


def test_resolved_is_dropped_after_a_new_firing(make_world: MakeWorld) -> None:
    world = make_world()
    world.advance(analysis_of(2), times=2)
    world.receiver.broken = True
    for answer in [analysis_of()] * 3 + [analysis_of(2)] * 3:
        world.advance(answer)
    world.receiver.broken = False
    world.now_s += 1000
    world.advance(analysis_of(2))
    assert world.heard == [("firing", "2"), ("firing", "2")]
    assert [call[0].alert.status for call in world.receiver.calls] == ["firing", "firing"]


def test_alerts_of_several_ranks_are_sent_in_one_call(make_world: MakeWorld) -> None:
    world = make_world()
    world.advance(analysis_of(2, 3), times=2)
    assert [len(call) for call in world.receiver.calls] == [2]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (InputError("x/steps.npy", "Permission denied"), "x/steps.npy: Permission denied"),
        (ZeroDivisionError("oh"), "ZeroDivisionError: oh"),
    ],
)
def test_failing_analysis_is_reported_once_and_resolves_nothing(make_world: MakeWorld, error: Exception, words: str) -> None:
    world = make_world()
    world.advance(analysis_of(2), times=2)
    world.advance(error, times=5)
    assert [line for line in world.reports if words in line] == world.reports
    assert len(world.reports) == 1
    assert world.heard == [("firing", "2")]
    # A run that ends while unreadable still ends, and the watcher records that its verdict is missing.
    world.run.end()
    for _ in range(FINAL_TRIES - 1):
        assert not world.evaluate(error)
    assert world.evaluate(error)
    assert world.heard == [("firing", "2"), ("resolved", "2")]
    assert world.watcher.has_problems


def test_failed_final_evaluation_is_retried(make_world: MakeWorld) -> None:
    world = make_world(fire_after=100)
    world.advance(analysis_of(2))
    world.run.end()
    assert not world.evaluate(InputError("x/steps.npy", "Stale file handle"))
    assert world.evaluate(analysis_of(2))
    assert world.heard == [("firing", "2"), ("resolved", "2")]
    assert not world.watcher.has_problems


def test_run_with_failed_evaluations_is_still_judged_at_the_end(make_world: MakeWorld) -> None:
    world = make_world("..")
    world.advance(InputError("x/steps.npy", "Stale file handle"))
    world.run.end()
    world.evaluate(analysis_of(2))
    assert world.heard == [("firing", "2"), ("resolved", "2")]


def test_unreadable_run_does_not_affect_other_runs(make_world: MakeWorld, make_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world, locked = make_world(".."), make_run("locked")
    original = RunObserver.snapshot

    def refuse(self: RunObserver, path: Path, **times: Any) -> RunSnapshot:
        if path == locked.path:
            raise PermissionError(13, "Permission denied", str(path))
        return original(self, path, **times)

    monkeypatch.setattr(RunObserver, "snapshot", refuse)
    world.advance(analysis_of(2), times=3)
    assert world.heard == [("firing", "2")]
    assert world.reports == [f"{locked.path}: Permission denied"]


def test_insufficient_data_changes_no_alert(make_world: MakeWorld) -> None:
    world = make_world()
    world.advance(analysis_of(2), times=2)
    world.advance(analysis_of(kind="insufficient_data"), times=5)
    assert world.heard == [("firing", "2")]


def test_alerts_of_a_deleted_run_are_resolved_after_an_hour(make_world: MakeWorld, make_run: Any) -> None:
    world, other = make_world(".."), make_run("other")
    world.advance(analysis_of(2), times=2)
    shutil.rmtree(world.run.path)
    other.grow(1)
    assert not world.evaluate(analysis_of(3, run_id="other-1"))
    assert world.heard == [("firing", "2")]
    world.now_s += FORGET_AFTER_S
    other.grow(1)
    world.evaluate(analysis_of(run_id="other-1"))
    assert ("resolved", "2") in world.heard
    assert any(str(world.run.path) in line and "no new record for 60 min" in line for line in world.reports)


def test_watcher_waits_for_a_moved_run_folder(make_world: MakeWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world = make_world()
    world.advance(analysis_of(2), times=2)
    moved = world.run.path.rename(world.run.path.with_name("moved"))
    for _ in range(3):
        assert not world.evaluate(analysis_of(2))
    assert len(world.reports) == 1
    moved.rename(world.run.path)
    world.run.end()
    assert world.evaluate()
    assert world.heard == [("firing", "2"), ("resolved", "2")]
    assert len(world.reports) == 1
    assert caplog.messages == [f"{world.run.path}: readable again"]


def test_damaged_run_in_a_folder_does_not_affect_others(make_world: MakeWorld) -> None:
    world = make_world("..")
    broken = world.run.path.with_name("broken")
    broken.mkdir()
    (broken / "run.json").write_text("{")
    world.advance(analysis_of(2), times=3)
    assert world.heard == [("firing", "2")]
    assert [line for line in world.reports if "broken/run.json: not JSON" in line] == world.reports
    assert len(world.reports) == 1


def test_runs_already_ended_in_a_folder_are_not_analysed(make_world: MakeWorld) -> None:
    world = make_world("..")
    world.run.end()
    assert not world.evaluate(analysis_of(2))
    assert world.analysed == []
    assert world.receiver.calls == []


def test_findings_are_written_beside_the_run(make_world: MakeWorld) -> None:
    world = make_world()
    world.advance(analysis_of(2), times=2)
    world.run.end()
    world.evaluate()
    lines = [msgspec.json.decode(line) for line in (world.run.path / "findings.jsonl").read_bytes().splitlines()]
    assert [line["status"] for line in lines] == ["firing", "resolved"]
    assert lines[0]["schema"] == "rankscope.finding/1"
    assert lines[0]["finding"]["evidence"][0] == {"name": "own_excess", "value": 60.0, "unit": "ms", "detail": "per step"}
    assert lines[0]["fingerprint"] == lines[1]["fingerprint"] == world.receiver.calls[0][0].alert.fingerprint


def test_second_failure_to_write_findings_is_reported_again(make_world: MakeWorld) -> None:
    world = make_world()
    findings = world.run.path / "findings.jsonl"
    findings.mkdir()
    world.advance(analysis_of(2), times=2)
    findings.rmdir()
    world.advance(analysis_of(2))
    assert len(findings.read_text().splitlines()) == 1
    findings.unlink()
    findings.mkdir()
    world.run.end()
    world.evaluate()
    assert ["findings.jsonl cannot be written" in line for line in world.reports] == [True, True]


def test_a_ledger_of_another_version_is_an_error_naming_the_file(tmp_path: Path) -> None:
    with AlertStore(tmp_path) as store:
        with store.transaction() as database:
            database.execute("INSERT INTO alerts (entry) VALUES (?)", (b'{"run": 7}',))
        with pytest.raises(InputError, match=STORE_FILE):
            load_ledger(store)
        with pytest.raises(InputError, match=STORE_FILE):
            read_entries(tmp_path)


def _with_unreadable(analysis: Analysis, *paths: str) -> Analysis:
    return msgspec.structs.replace(analysis, source=msgspec.structs.replace(analysis.source, unreadable=list(paths)))


def test_unreadable_rank_is_reported_once_and_affects_no_other(make_world: MakeWorld) -> None:
    # given a run in which the folder of one rank is unreadable
    world = make_world()
    folder = rank_dir(world.run.path, 0, 3)
    shutil.rmtree(folder)
    folder.write_text("")  # unreadable for every user, root included
    seen = ("attempts/000/ranks/00003", "attempts/000/ranks/00003/rank.json")
    # when it is followed
    world.advance(_with_unreadable(analysis_of(2), *seen), times=4, ranks=range(1))
    # then alerts of the other ranks are sent, and the unreadable one is reported once, with the reason
    assert world.heard == [("firing", "2")]
    [report] = world.reports
    assert report.startswith(f"{folder}: Not a directory")
    assert not world.watcher.has_problems


def test_number_of_named_unreadable_files_is_bounded(make_world: MakeWorld) -> None:
    world = make_world()
    world.advance(_with_unreadable(analysis_of(), *(f"attempts/000/ranks/{rank:05d}" for rank in range(4, 1000))), times=2)
    assert len(world.reports) == SHOWN + 1
    assert all(report.endswith("left out, the rest of the run is followed") for report in world.reports[:-1])
    assert world.reports[-1].startswith(f"{world.run.path}: {996 - SHOWN} more ")


def test_alert_of_an_unreadable_rank_keeps_firing(make_world: MakeWorld) -> None:
    world = make_world()
    world.advance(analysis_of(2), times=2)
    # when the straggler's records are unreadable for longer than a recovery takes
    world.advance(_with_unreadable(analysis_of(), "attempts/000/ranks/00002/steps-000000.npy"), times=6)
    # then its alert keeps firing, and ends when readable records show the recovery
    assert world.heard == [("firing", "2")]
    world.advance(analysis_of(), times=2)
    assert world.heard == [("firing", "2"), ("resolved", "2")]


def test_run_with_an_unreadable_rank_is_followed(make_world: MakeWorld) -> None:
    # given a run whose rank 1 has a folder in place of its steps file, and the real analysis
    world = make_world()
    steps = segment(rank_dir(world.run.path, 0, 1), "steps", 0)
    steps.unlink()
    steps.mkdir()
    world.answer = FollowedRuns().update(world.run.path)
    assert world.answer.source.coverage == pytest.approx(0.75)
    for _ in range(3):
        world.evaluate()
    [report] = world.reports
    assert report.startswith(f"{steps}: Is a directory")
