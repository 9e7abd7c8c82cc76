"""The page of the alerts of all runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dashboards.alert_records import SECOND, alert, write_finding
from tests.dashboards.blocks import draw_at, page_text
from tests.dashboards.recorded_run import START_NS

from rankscope.base.errors import InputError, RankscopeError
from rankscope.dashboards.alerts import all_alerts as page
from rankscope.dashboards.alerts import data as watched_alerts
from rankscope.dashboards.alerts.all_alerts import PAGE, alert_row, picked_alert, row_id
from rankscope.dashboards.alerts.figures import MOST_BARS, alert_counts, alert_times, bar_width_s
from rankscope.dashboards.alerts.prometheus import Prometheus, PrometheusServer
from rankscope.dashboards.alerts.record import AlertRecord, CollectedAlerts, alert_record
from rankscope.dashboards.alerts.view import alert_article
from rankscope.dashboards.charts.palette import PALETTES
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.dashboards.web.config import DashboardConfig

COLORS = PALETTES["light"]


# Rows -------------------------------------------------------------------------------------------------------------------------


def test_row_has_known_fields_and_omits_unknown_ones() -> None:
    result = alert_row(
        replace(alert(gpu_uuid="GPU-1"), evidence="/run/run-1?rank=2"), {"run-1": "bert"}, now_unix_ns=START_NS + 540 * SECOND
    )
    unknown = alert_row(
        alert_record({}, {}, state="lost", started_unix_ns=START_NS, source="prometheus"), {}, now_unix_ns=START_NS
    )

    assert result | {"id": ""} == {
        "id": "",
        "state": "Past",
        "state_tone": "plain",
        "severity": "warning",
        "alert": "TrainingStraggler",
        "name": "bert",
        "href": "/run/run-1?rank=2",
        "at_fault": "rank 2",
        "host": "n1",
        "gpu": "GPU-1",
        "started": "2026-09-21 14:13:20 UTC",
        "ended": "2026-09-21 14:14:20 UTC",
        "minutes": 1.0,
        "summary": "Rank 2 is slow.",
    }
    # An alert without a known end has no duration up to now
    assert set(unknown) == {"id", "state", "state_tone", "started"}


def test_duration_of_a_firing_alert_extends_to_now() -> None:
    row = alert_row(alert("firing", end_s=None), {}, now_unix_ns=START_NS + 540 * SECOND)

    assert row["minutes"] == 9.0
    assert "ended" not in row


def test_alert_with_an_impossible_time_is_still_shown() -> None:
    odd = replace(alert(), started_unix_ns=-(10**22), ended_unix_ns=10**22)
    row = alert_row(odd, {}, now_unix_ns=START_NS)
    assert row["alert"]
    assert not {"started", "ended"} & set(row)
    assert "not known" in str(alert_article(odd))
    assert len(alert_times([odd, alert()], COLORS, now_unix_ns=START_NS).data) == 4
    assert alert_counts([odd, alert()], COLORS).sentence


def test_hostile_names_in_a_row_are_escaped() -> None:
    row = alert_row(alert(alertname="x\u202e\n", host="h\x1b[31m"), {"run-1": "n\u202ex"}, now_unix_ns=START_NS)

    assert not any(letter in f"{row['alert']}{row['host']}{row['name']}" for letter in "\u202e\n\x1b")


# The figure -------------------------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.integers(0, 400 * 86_400), st.sampled_from(["critical", "warning", "page", None])), min_size=1, max_size=20
    )
)
def test_every_alert_is_counted_in_exactly_one_bar(starts: list[tuple[int, str | None]]) -> None:
    alerts = [replace(alert(start_s=second), severity=severity) for second, severity in starts]

    drawn = alert_counts(alerts, COLORS)

    assert sum(sum(bar.y) for bar in drawn.figure.data) == len(alerts)
    assert len({x for bar in drawn.figure.data for x in bar.x}) <= MOST_BARS
    critical = drawn.figure.data[0]
    assert sum(critical.y) == sum(severity == "critical" for _, severity in starts)
    assert len(drawn.table.rows) == len(alerts)


def test_bar_width_grows_with_the_time_span() -> None:
    assert bar_width_s([START_NS])[1] == "minute"
    assert bar_width_s([START_NS, START_NS + 2 * 86_400 * SECOND])[1] == "hour"
    assert bar_width_s([START_NS, START_NS + 400 * 86_400 * SECOND])[1] == "7 days"


def test_figure_caption_has_firing_count_and_most_frequent_alert() -> None:
    drawn = alert_counts([alert("firing", end_s=None), alert(start_s=1), alert(alertname="GpuDown")], COLORS)

    assert drawn.sentence == "3 alerts, 1 of them firing; TrainingStraggler most often, 2 times."
    # Distinguishable without colour
    assert len({bar.marker.pattern.shape for bar in drawn.figure.data}) == 3


# The page ---------------------------------------------------------------------------------------------------------------------


def test_page_without_alerts_shows_how_to_get_alerts(memory_runs: Any) -> None:
    shown = page_text(memory_runs, PAGE.path)

    assert "rankscope alerts watch" in shown
    assert "--prometheus" in shown


def test_unreachable_source_is_shown_above_alerts_of_other_sources(memory_runs: Any) -> None:
    memory_runs.collected["run-1"] = CollectedAlerts([alert()], ["http://prom:9090: cannot be reached"])

    shown = page_text(memory_runs, PAGE.path, "?q=slow")

    assert shown.index("cannot be reached") < shown.index("TrainingStraggler")
    assert "1 alert, 0 firing" in shown
    assert '"quickFilterText": "slow"' in shown


def test_number_of_alerts_left_out_of_the_table_is_shown(memory_runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_ROWS", 2)
    memory_runs.collected["run-1"] = CollectedAlerts([alert(start_s=n) for n in range(5)], [])

    shown = page_text(memory_runs, PAGE.path)

    assert "3 older alerts are not in the table" in shown
    assert shown.count('"state": "Past"') == 2
    assert len(draw_at(memory_runs, PAGE.path, "alert-counts")[0].table.rows) == 5


def test_selected_alert_shows_evidence_and_runbook(memory_runs: Any) -> None:
    alerts = CollectedAlerts([alert(), alert(rank="3")], [])

    shown = str(picked_alert(alerts, row_id(alerts.alerts[0])))

    assert "imposed wait" in shown
    assert "Markdown" in shown
    assert str(picked_alert(alerts, "another")) == str(picked_alert(alerts, None)), "the first, unless another one is selected"
    assert picked_alert(CollectedAlerts([], []), None) == []


def test_unreadable_run_folder_raises_an_error_with_the_reason(memory_runs: Any) -> None:
    memory_runs.problems["alerts"] = InputError("runs", "Permission denied")

    with pytest.raises(RankscopeError, match="Permission denied"):
        PAGE.blocks(memory_runs, "", DashboardConfig())


# Over folders of runs -----------------------------------------------------------------------------------------------------------


def test_alerts_of_all_runs_are_listed_with_firing_ones_first(
    tmp_path: Path, write_run: Callable[..., Path], until_ready: Callable[..., Any]
) -> None:
    # Given a live run, an ended one, a damaged one, and a Prometheus that is down
    root = tmp_path / "runs"
    live = write_run(root / "live", run_id="live", finished=False)
    over = write_run(root / "over", run_id="over")
    write_run(root / "bad", run_id="bad")
    (root / "bad" / "run.json").write_text("{")
    write_finding(live, "firing", run_id="live", rank="1")
    write_finding(over, "firing", 1, run_id="over", rank="0")
    write_finding(over, "resolved", 60, run_id="over", rank="0")
    source = DiskRuns(root, prometheus=Prometheus(PrometheusServer(url="http://127.0.0.1:9")))

    result = until_ready(source.all_alerts)

    collected = [(alert.state, alert.run_id, alert.evidence) for alert in result.alerts]
    assert collected == [("firing", "live", "/run/live?rank=1"), ("resolved", "over", "/run/over?rank=0")]
    assert len(result.problems) == 1
    assert "cannot be reached" in result.problems[0]


def test_repeated_alert_is_one_alert_with_the_latest_summary(tmp_path: Path, write_run: Any) -> None:
    run = write_run(tmp_path / "run", run_id="a", finished=False)
    write_finding(run, "firing", run_id="a")
    write_finding(run, "firing", 1, run_id="b")
    write_finding(run, "firing", 60, {"summary": "Rank 3 did not come."}, run_id="a")

    findings = watched_alerts.findings_of(run, over=False)

    assert [(item.run_id, item.started_unix_ns, item.summary) for item in findings] == [
        ("a", START_NS, "Rank 3 did not come."),
        ("b", START_NS + SECOND, "Rank 2 is slow."),
    ]


def test_only_changed_findings_are_read_again(
    tmp_path: Path, write_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "runs"
    runs = [write_run(root / name, run_id=name) for name in ("a", "b")]
    for run in runs:
        write_finding(run, "firing", run_id=run.name)
    read: list[str] = []
    follow = watched_alerts.findings_of

    def counted(run: Path, *, over: bool) -> list[AlertRecord]:
        read.append(run.name)
        return follow(run, over=over)

    monkeypatch.setattr("rankscope.dashboards.alerts.data.findings_of", counted)
    now_s = [2e9]
    source = DiskRuns(root, clock_s=lambda: now_s[0])

    assert len(source.all_alerts().alerts) == 2
    write_finding(runs[0], "resolved", 60, run_id="a")
    os.utime(runs[1], None)
    assert len(source.all_alerts().alerts) == 2, "asked again within seconds"
    now_s[0] += 60

    assert {alert.run_id: alert.state for alert in source.all_alerts().alerts} == {"a": "resolved", "b": "lost"}
    assert sorted(read) == ["a", "a", "b"]
