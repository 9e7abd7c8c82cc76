"""Alerts of the dashboard, from the watcher's files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.dashboards.alert_records import LABELS, SECOND, write_finding
from tests.dashboards.bad_runs import change_info
from tests.dashboards.blocks import run_at
from tests.dashboards.gpu_samples import write_samples
from tests.dashboards.recorded_run import START_NS, write_run

from rankscope.alerts.alert import Alert, fingerprint
from rankscope.alerts.store.database import AlertStore
from rankscope.alerts.store.folders import STORE_FILE, watcher_state
from rankscope.alerts.watch.ledger import AlertLedger, FiringState, LedgerEntry, save_ledger
from rankscope.dashboards.alerts.data import about_run, alerts_about, alerts_of
from rankscope.dashboards.alerts.record import AlertRecord, CollectedAlerts, alert_record
from rankscope.dashboards.data.source import RunSummary
from rankscope.runs.paths import findings_file, rank_dir
from rankscope.runs.records import HardwareSample

SPAN = (START_NS - 3600 * SECOND, START_NS + 3600 * SECOND)


@pytest.fixture
def run(tmp_path: Path) -> RunSummary:
    (tmp_path / "runs" / "bert").mkdir(parents=True)
    return RunSummary(run_id="run-1", name="bert", path=str(tmp_path / "runs" / "bert"), revision="a", status="live")


def collected(run: RunSummary, **more: Any) -> CollectedAlerts:
    return alerts_of([run], **{"root": None, "prometheus": None, "span_unix_ns": SPAN, **more})


def test_firing_and_resolved_findings_form_one_alert(run: RunSummary) -> None:
    write_finding(
        run.path,
        "firing",
        0,
        {"summary": "Rank 2 is slow.", "evidence": "imposed wait 39 ms", "runbook_url": "https://wiki/T.md"},
    )
    write_finding(run.path, "resolved", 60, {"summary": "Rank 2 is slow."})
    write_finding(run.path, "firing", 900, {"summary": "Rank 2 is slow again."})

    now, before = collected(run).alerts

    assert (now.state, now.started_unix_ns, now.ended_unix_ns) == ("firing", START_NS + 900 * SECOND, None)
    assert (before.state, before.started_unix_ns, before.ended_unix_ns) == ("resolved", START_NS, START_NS + 60 * SECOND)
    assert (before.name, before.severity, before.run_id, before.rank) == ("TrainingStraggler", "warning", "run-1", 2)
    assert (before.summary, before.description) == ("Rank 2 is slow.", "imposed wait 39 ms")
    assert (before.evidence, before.runbook_url) == ("/run/run-1?rank=2", "https://wiki/T.md")
    assert before.source == "watcher"


def test_open_alert_of_a_finished_run_is_lost_and_not_firing(run: RunSummary) -> None:
    write_finding(run.path, "firing", 0)

    [alert] = collected(replace(run, status="finished")).alerts

    assert (alert.state, alert.ended_unix_ns) == ("lost", None)


def test_alert_from_two_watchers_of_one_run_is_listed_once(run: RunSummary) -> None:
    for seconds in (0, 1):
        write_finding(run.path, "firing", seconds)
    for seconds in (60, 61):
        write_finding(run.path, "resolved", seconds)

    [alert] = collected(run).alerts

    assert (alert.started_unix_ns, alert.ended_unix_ns) == (START_NS, START_NS + 60 * SECOND)


@pytest.mark.parametrize("watched", ["root", "run"])
def test_pending_alert_comes_from_the_watcher_state(run: RunSummary, watched: str) -> None:
    # Given a watcher of the folder or of the run, with a pending finding of this run and one of a run elsewhere
    root = Path(run.path).parent
    entries = [
        LedgerEntry(
            run=folder,
            fingerprint="1",
            alert=Alert(labels=LABELS, annotations={"summary": "S."}),
            track=FiringState("pending", 2),
        )
        for folder in (run.path, "/elsewhere")
    ]
    with AlertStore(watcher_state(root if watched == "root" else Path(run.path))) as store:
        save_ledger(store, AlertLedger(entries=entries))

    [alert] = collected(run, root=root).alerts

    assert (alert.state, alert.summary, alert.rank) == ("pending", "S.", 2)


def test_damaged_lines_are_skipped_and_unreadable_store_is_reported(run: RunSummary) -> None:
    write_finding(run.path, "firing", 0)
    with findings_file(Path(run.path)).open("ab") as file:
        file.write(b'{"schema": 7}\n\xff\n{"half')
    state = watcher_state(Path(run.path)) / STORE_FILE
    state.parent.mkdir(parents=True)
    state.write_text("no ledger")

    result = collected(run)

    assert [alert.state for alert in result.alerts] == ["firing"]
    [problem] = result.problems
    assert problem.startswith(f"{state}: not a store")
    assert state.read_text() == "no ledger"


def test_directory_in_place_of_the_findings_file_is_a_problem(run: RunSummary) -> None:
    findings_file(Path(run.path)).mkdir()

    result = collected(run)

    assert result.alerts == []
    assert result.problems == [f"{findings_file(Path(run.path))}: Is a directory"]


def test_only_alerts_overlapping_the_time_span_are_collected(run: RunSummary) -> None:
    write_finding(run.path, "firing", 0)
    write_finding(run.path, "resolved", 60)

    assert collected(run, span_unix_ns=(START_NS + 61 * SECOND, START_NS + 99 * SECOND)).alerts == []
    assert len(collected(run, span_unix_ns=(START_NS + 60 * SECOND, START_NS + 99 * SECOND)).alerts) == 1


@pytest.mark.parametrize("address", ["javascript:alert(1)", "runbooks/T.md", "//evil", "http://[", "data:text/html,x"])
def test_runbook_without_a_web_url_is_not_linked(address: str) -> None:
    record = alert_record(LABELS, {"runbook_url": address}, state="firing", started_unix_ns=START_NS, source="watcher")

    assert record.runbook_url is None


@pytest.mark.parametrize("rank", ["-1", "²", "99999999", "x", ""])
def test_invalid_rank_label_is_none(rank: str) -> None:
    assert alert_record({**LABELS, "rank": rank}, {}, state="firing", started_unix_ns=START_NS, source="watcher").rank is None


def test_run_shows_its_own_alerts_and_those_of_its_gpus_and_hosts() -> None:
    def about(**labels: str) -> AlertRecord:
        return alert_record({"alertname": "X", **labels}, {}, state="firing", started_unix_ns=START_NS, source="prometheus")

    of_run = [
        about(run_id="run-1", host="far"),
        about(uuid="GPU-1", instance="n9:9400"),
        about(instance="n1:9400"),
        about(instance="n1"),  # as the chart of the exporter sets it
        about(host="n1"),
    ]
    others = [about(run_id="run-2", host="n1"), about(uuid="GPU-9", instance="n1:9400"), about(instance="n2:9400"), about()]

    shown = about_run(CollectedAlerts([*others, *of_run], ["p"]), "run-1", gpus={"GPU-1"}, hosts={"n1"})

    assert shown == CollectedAlerts(of_run, ["p"])


def test_run_shows_alerts_of_its_mig_device_and_parent_gpu(tmp_path: Path) -> None:
    def about(uuid: str) -> AlertRecord:
        return alert_record({"alertname": "X", "uuid": uuid}, {}, state="firing", started_unix_ns=START_NS, source="prometheus")

    path = write_run(tmp_path / "run")
    change_info(rank_dir(path, 0, 2) / "rank.json", gpu_uuid="GPU-0000002a")  # as CUDA reports it
    sample = HardwareSample(unix_ns=START_NS + 10**9, gpu_uuid="MIG-0000002a", parent_uuid="GPU-whole", memory_used_bytes=2**30)
    write_samples(path, "node-1", [sample])
    alerts = CollectedAlerts([about("MIG-0000002a"), about("GPU-whole"), about("GPU-other"), about("MIG-2a")], [])

    run = run_at(path)
    vars(run)["alerts"] = alerts
    shown = alerts_about(run)

    assert [alert.labels["uuid"] for alert in shown.alerts] == ["MIG-0000002a", "GPU-whole"]


def test_firing_alert_followed_by_two_watchers_is_shown_once(run: RunSummary) -> None:
    # Given the line in the run, and the states of two watchers, of the run and of its folder
    root = Path(run.path).parent
    write_finding(run.path, "firing", 0, {"summary": "Rank 2 is slow."})
    for watched in (root, Path(run.path)):
        entry = LedgerEntry(
            run=run.path,
            fingerprint=fingerprint(LABELS),
            alert=Alert(labels=LABELS, annotations={}),
            track=FiringState("firing"),
            starts_at_unix_ns=START_NS,
        )
        with AlertStore(watcher_state(watched)) as store:
            save_ledger(store, AlertLedger(entries=[entry]))

    [alert] = collected(run, root=root).alerts

    assert (alert.state, alert.summary, alert.started_unix_ns) == ("firing", "Rank 2 is slow.", START_NS)


def test_hostile_run_id_is_escaped_in_the_link(tmp_path: Path) -> None:
    summary = RunSummary(run_id='a/../"><script>', name="x", path=str(tmp_path), revision="a", status="live")
    write_finding(tmp_path, "firing", run_id=summary.run_id)

    assert collected(summary).alerts[0].evidence == "/run/a%2F..%2F%22%3E%3Cscript%3E?rank=2"
