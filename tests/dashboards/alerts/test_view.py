"""The view of alerts: bars over time, texts, and notes about missing data."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.dashboards.alert_records import SECOND, alert
from tests.dashboards.blocks import draw, notes, page_links, run_of, write
from tests.dashboards.recorded_run import START_NS

from rankscope.dashboards.alerts.figures import NONE, alert_counts, alert_times, row_label
from rankscope.dashboards.alerts.record import CollectedAlerts
from rankscope.dashboards.alerts.view import VIEW, alert_article
from rankscope.dashboards.charts.palette import PALETTES
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.model.page import Details, walk
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.words.units import time_zone

COLORS = PALETTES["light"]


def test_bars_span_each_alert_until_its_end_or_now() -> None:
    figure = alert_times([alert("firing", 100, None), alert(), alert(rank="3")], COLORS, now_unix_ns=START_NS + 160 * SECOND)

    bars = {bar.name: bar for bar in figure.data if len(bar.y)}
    assert set(bars) == {"Fires", "Past"}
    assert (list(bars["Fires"].x), list(bars["Fires"].y)) == ([60_000], [0])
    assert (list(bars["Past"].x), list(bars["Past"].y)) == ([60_000, 60_000], [0, 1])
    assert list(bars["Fires"].base) == ["2026-09-21 14:15:00"]
    assert list(figure.layout.yaxis.ticktext) == ["TrainingStraggler rank 2", "TrainingStraggler rank 3"]
    # Distinguishable without colour
    assert bars["Fires"].marker.pattern.shape != bars["Past"].marker.pattern.shape


def test_figure_without_alerts_explains_how_to_get_alerts() -> None:
    assert notes(alert_times([], COLORS, now_unix_ns=START_NS)) == [NONE]


def test_alert_labels_are_shortened_and_escaped() -> None:
    label = row_label(alert(alertname="<b>x</b>\u202e" + "y" * 100))

    assert "<" not in label
    assert "\u202e" not in label
    assert len(label) == 48


@pytest.fixture
def run(memory_runs: Any) -> RunData:
    memory_runs.collected["run-1"] = CollectedAlerts([alert("firing", 0, None), alert(run_id="run-2")], ["Prometheus: gone"])
    return run_of(memory_runs)


def test_alert_figure_has_a_caption_and_a_data_table(run: RunData) -> None:
    drawn = draw(VIEW, "alert-times", run, PageState(), COLORS)

    assert drawn.sentence == "Alerts: 1 firing, 0 pending or past"
    assert [row[:5] for row in drawn.table.rows] == [("TrainingStraggler", "warning", "firing", "run-1", 2)]
    assert all(len(row) == len(drawn.table.columns) for row in drawn.table.rows)


def test_problems_are_listed_before_alerts_with_their_runbooks(run: RunData) -> None:
    text = str(write(VIEW, "alert-list", run, PageState()))

    assert "Prometheus: gone" in text
    assert text.index("Prometheus: gone") < text.index("Rank 2 is slow.")
    assert "by the watcher" in text
    assert "Markdown" in text  # without a server for runbooks, the page contains it


def test_replay_command_quotes_the_run_folder(memory_runs: Any, analysis: Any, table: Any) -> None:
    memory_runs.put(analysis, table, path="/runs/a b;c")

    text = str(VIEW.blocks(run_of(memory_runs), PageState()))

    assert "rankscope alerts replay '/runs/a b;c'" in text


def test_axis_uses_the_browser_time_zone_and_hover_text_utc() -> None:
    """Given a browser in Berlin in summer, when alerts are drawn, then bars begin two hours after their time in UTC."""
    with time_zone("Europe/Berlin"):
        figure = alert_times([alert("firing", 0, None)], COLORS, now_unix_ns=START_NS)
    (bar,) = [bar for bar in figure.data if bar.name == "Fires"]

    assert list(bar.base) == ["2026-09-21 16:13:20"]
    assert bar.customdata[0][2] == "2026-09-21 14:13:20"
    assert "Europe/Berlin" in figure.layout.xaxis.title.text
    for unknown in ("../../etc/passwd", "No/Where", "localtime", "EST5EDT", "", None):
        with time_zone(unknown):
            assert "UTC" in alert_times([alert()], COLORS, now_unix_ns=START_NS).layout.xaxis.title.text


def test_bar_across_the_end_of_summer_time_uses_one_offset() -> None:
    """Given an alert over the end of summer time, then the axis has one offset, that of its end, and names it."""
    began, ended = (int(datetime(2026, 10, *at, tzinfo=UTC).timestamp()) - START_NS // SECOND for at in ((24, 20), (25, 8)))
    with time_zone("Europe/Berlin"):
        figure = alert_times([alert("resolved", began, ended)], COLORS, now_unix_ns=START_NS)
    (bar,) = [bar for bar in figure.data if bar.name == "Past"]
    assert list(bar.base) == ["2026-10-24 21:00:00"]
    assert list(bar.x) == [12 * 3_600_000]
    assert "Europe/Berlin, UTC+01:00" in figure.layout.xaxis.title.text


def test_daily_bars_use_the_time_zone_of_the_axis() -> None:
    """Given alerts in one day of New York that are in two of UTC, then they are in one bar, at noon."""
    first = int(datetime(2026, 6, 1, 4, tzinfo=UTC).timestamp()) - START_NS // SECOND  # midnight in New York
    with time_zone("America/New_York"):
        figure = alert_counts([alert("resolved", first + hour * 3_600) for hour in (1, 12, 23, 20 * 24)], COLORS).figure
    assert "day" in figure.layout.yaxis.title.text
    (bar,) = [bar for bar in figure.data if len(bar.x)]
    assert list(zip(bar.x, bar.y, strict=True)) == [("2026-06-01 12:00:00", 3), ("2026-06-21 12:00:00", 1)]
    assert "America/New_York, UTC-04:00" in figure.layout.xaxis.title.text


def test_labels_in_an_alert_differ_in_more_than_a_verb() -> None:
    article = alert_article(replace(alert(), description="Its data loader is slow.", evidence="/run/run-1"))
    labels = [block.summary for block in walk([article]) if isinstance(block, Details)]
    labels += [link.text for link in page_links([article])]
    assert len(labels) >= 3
    words = [set(label.lower().split()) for label in labels]
    assert all(first.isdisjoint(second) for at, first in enumerate(words) for second in words[:at])
