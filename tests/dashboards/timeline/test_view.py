"""The timeline of a captured window, from the run directory to the page, with the costliest kernels of a rank."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.dashboards.blocks import draw, page_text, pick, run_at, text_of, write, zoom
from tests.step_files import steps_file

from rankscope.analysis.result.analysis import Analysis
from rankscope.dashboards.app import create_app
from rankscope.dashboards.charts.palette import palette
from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.data.source import NotReadyError
from rankscope.dashboards.live.pages import Pages
from rankscope.dashboards.model.page import Choice, walk
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.dashboards.timeline.kernels import compared_ranks, kernel_rows
from rankscope.dashboards.timeline.view import VIEW
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.runs.paths import rank_dir
from rankscope.runs.records import KernelRecord

WriteRun = Callable[..., Path]


@pytest.fixture
def run(tmp_path: Path, write_run: WriteRun) -> RunData:
    """Run of four ranks with a window of steps 20 to 22, in which rank 2 is late by 40 ms."""
    return run_at(write_run(tmp_path / "run"))


def picture(run: RunData, search: str, name: str = "timeline-lanes") -> Any:
    return draw(VIEW, name, run, PageState.parse(search), palette(None))


def as_text(components: Any) -> str:
    return text_of(components)


def test_newest_window_is_found_with_its_ranks_and_steps(run: RunData) -> None:
    windows = run.source.windows(run.summary)

    assert [(window.first, window.past, window.ranks) for window in windows.windows] == [(20, 23, 4)]
    assert windows.chosen(None) == windows.chosen(21) == windows.chosen(999) == windows.windows[0]


def test_window_choice_shows_the_drawn_window(run: RunData) -> None:
    newest = run.source.windows(run.summary).windows[-1]
    for state in (PageState(), PageState(window=newest.first), PageState(window=newest.past - 1)):
        (choice,) = (block for block in walk(VIEW.blocks(run, state)) if isinstance(block, Choice) and block.field == "window")
        label = {option["value"]: option["label"] for option in choice.options}.get(str(choice.value), choice.nothing)
        assert (choice.value is None) == (state.window is None), "as in the address, which the control gets"
        pages = Pages(run.source, DashboardConfig())
        assert pages.controls("/run/run-1/timeline", state.search)["window"] == choice.value, "also after a click"
        assert label is not None
        assert label.startswith(newest.steps)


def test_late_rank_is_named_and_the_others_wait(run: RunData) -> None:
    drawn = picture(run, "", "timeline-arrival")

    assert drawn.sentence.startswith("all_reduce · default_pg · ")
    assert "last: rank 2" in drawn.sentence
    ranks = {row[0]: row for row in drawn.table.rows}
    assert ranks[2][2] == pytest.approx(0, abs=0.01)
    assert all(ranks[rank][2] == pytest.approx(40, abs=1.5) for rank in (0, 1, 3))


def test_lanes_of_few_ranks_show_phases_groups_and_waits(run: RunData) -> None:
    drawn = picture(run, "")

    assert [row[:2] for row in drawn.table.rows[:3]] == [(0, "rank 0"), (0, "host: phases"), (0, "group default_pg")]
    at = drawn.table.columns.index("waiting for later ranks [us]")
    waited = {row[0]: row[at] for row in drawn.table.rows if row[1].startswith("rank ")}
    assert waited[2] < 100
    assert all(waited[rank] > 3 * 35_000 for rank in (0, 1, 3))


def test_time_span_in_the_url_selects_a_part_of_the_window(run: RunData) -> None:
    drawn = picture(run, "?span=10000-20000")

    times = [sum(value for value in row[2:] if value is not None) for row in drawn.table.rows]
    assert 0 < max(times) <= 10_000
    assert "10.00 to 20.00 ms" in drawn.sentence
    assert "0.00 to" in picture(run, "?span=999999999-9999999999").sentence  # outside the window: everything is shown


def test_dragging_sets_and_double_click_clears_the_time_span(run: RunData) -> None:
    assert zoom(VIEW, "timeline-lanes", run, PageState(), (1.25, 2.0)).span == (1250, 2000)
    assert zoom(VIEW, "timeline-lanes", run, PageState(span=(1, 2)), None).span is None


def test_click_selects_a_collective_or_the_rank_beside(run: RunData) -> None:
    in_it = pick(VIEW, "timeline-lanes", run, PageState(), {"x": 50.0, "y": 0})
    beside = pick(VIEW, "timeline-lanes", run, PageState(), {"x": 1.0, "y": 0})

    assert in_it.collective == "default_pg:20"
    assert PageState.parse(in_it.search) == in_it
    assert (beside.rank, beside.collective) == (0, None)


def test_selected_collective_is_framed_on_all_ranks(run: RunData) -> None:
    drawn = picture(run, "?collective=default_pg:21")

    frames = drawn.figure.data[-1]
    assert list(frames.x).count(None) == 4
    assert len(picture(run, "?collective=no:such").figure.data) == len(drawn.figure.data) - 1


def test_matched_collectives_and_clock_correction_are_shown(run: RunData) -> None:
    text = as_text(write(VIEW, "timeline-facts", run, PageState()))

    assert "4 of 4 ranks captured, 3 collectives matched, 0 not" in text
    assert "Clocks corrected by the ends of 3 collectives" in text
    assert "Raw traces of the ranks were not kept" in text


def test_page_without_windows_shows_the_capture_command(tmp_path: Path, write_run: WriteRun) -> None:
    run = run_at(write_run(tmp_path / "run", windows=False))

    text = as_text(VIEW.blocks(run, PageState()))

    assert "No window has been captured yet" in text
    assert f"rankscope capture {run.summary.path} --steps 3" in text


@pytest.mark.parametrize(("finished", "may_capture", "asks"), [(True, True, False), (False, True, True), (False, False, False)])
def test_only_permitted_users_can_request_captures_of_a_running_job(
    tmp_path: Path, write_run: WriteRun, *, finished: bool, may_capture: bool, asks: bool
) -> None:
    source = DiskRuns(write_run(tmp_path / "run", finished=finished))

    run = RunData(source, source.summary("run-1"), may_capture=may_capture)
    text = as_text(VIEW.blocks(run, PageState()))

    assert ("/api/run/run-1/capture" in text) == asks
    assert "rankscope capture" in text


@pytest.mark.parametrize("url", [None, "https://perfetto.example/v50/"])
def test_window_opens_in_the_configured_perfetto(run: RunData, url: str | None) -> None:
    result = page_text(run.source, "/run/run-1/timeline", config=DashboardConfig(perfetto_url=url))

    assert '"data-export": "/run/run-1/perfetto"' in result
    assert ("data-perfetto" in result) == (url is not None)
    assert url is None or f'"data-perfetto": "{url}"' in result


def test_window_can_be_downloaded_for_perfetto(run: RunData) -> None:
    http = create_app(run.source).server.test_client()

    response = http.get("/run/run-1/perfetto?window=20&ask=1")
    saved = http.get("/run/run-1/perfetto?window=20")

    data = saved.data
    saved.close()
    assert response.json["bytes"] == len(data)
    assert response.json["file"] == "run-1-step-20.json.gz"
    assert "steps 20 to 22" in response.json["title"]
    assert "run-1-step-20.json.gz" in saved.headers["Content-Disposition"]
    events = msgspec.json.decode(gzip.decompress(data))["traceEvents"]
    assert {event["name"] for event in events} >= {"all_reduce", "waiting for rank 2", "step 21"}
    assert "step 23" not in {event["name"] for event in events}


def test_perfetto_download_without_a_window_is_404(tmp_path: Path, write_run: WriteRun) -> None:
    http = create_app(DiskRuns(write_run(tmp_path / "run", windows=False))).server.test_client()

    assert (result := http.get("/run/run-1/perfetto")).status_code == 404
    assert result.json == {"error": "no window has been captured yet"}
    assert http.get("/run/none/perfetto").status_code == 404


def test_perfetto_download_in_preparation_reports_progress(run: RunData, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_yet(*_: object) -> Path:
        raise NotReadyError(Progress("Writing", 3, 8))

    monkeypatch.setattr(run.source, "perfetto", not_yet)
    http = create_app(run.source).server.test_client()

    assert http.get("/run/run-1/perfetto?ask=1").json == {"state": "Writing: 3 of 8"}
    assert http.get("/run/run-1/perfetto").status_code == 503


def test_raw_trace_written_after_its_window_is_read(tmp_path: Path, write_run: WriteRun) -> None:
    path = write_run(tmp_path / "run", finished=False)
    source = DiskRuns(path)

    def left_out() -> list[str]:
        run = source.summary("run-1")
        return source.window(run, source.windows(run).windows[0]).info.left_out

    assert left_out() == []
    trace = rank_dir(path, 0, 0) / "traces" / "window-20.json"
    trace.parent.mkdir()
    trace.write_text("{")
    steps_file(path, 0).touch()
    assert str(trace) in left_out()[0]


def kernel(step: int, name: str, us: float, calls: int = 2) -> KernelRecord:
    return KernelRecord(step=step, name=name, kind="compute", total_us=us, calls=calls, kernel_class="gemm")


def test_kernel_rows_compare_means_per_step_with_a_healthy_rank() -> None:
    slow = [kernel(20, "gemm", 3_000), kernel(21, "gemm", 5_000), kernel(20, "copy", 2_000, calls=1)]
    rows = kernel_rows(slow, [kernel(20, "gemm", 2_000), kernel(20, "other", 9_000)])

    assert [row["name"] for row in rows] == ["gemm", "copy"], "the costliest first"
    gemm, copy = rows
    assert (gemm["ms"], gemm["calls"], gemm["share_percent"]) == (4.0, 2.0, 80.0)
    assert (gemm["healthy_ms"], gemm["ratio"]) == (2.0, 2.0)
    assert (copy["ms"], copy["calls"]) == (2.0, 1.0), "per step that has it: in others it may be below the costliest"
    assert (copy["healthy_ms"], copy["ratio"]) == (None, None), "not known, and not 0"
    assert kernel_rows([], []) == []


def test_kernel_in_fewer_steps_is_averaged_over_those_steps() -> None:
    """Given a kernel among the costliest in five steps of one rank and in one of the other, then the ratio is that of a step."""
    often = [kernel(step, name, 1_000) for step in range(5) for name in ("gemm", "copy")]
    seldom = [kernel(step, "gemm", 1_000) for step in range(5)] + [kernel(3, "copy", 1_000)]

    for item, healthy in ((often, seldom), (seldom, often)):
        _, copy = kernel_rows(item, healthy)
        assert (copy["ms"], copy["calls"], copy["healthy_ms"], copy["ratio"]) == (1.0, 2.0, 1.0, 1.0)


def test_records_of_one_kernel_in_one_step_are_summed() -> None:
    (row,) = kernel_rows([kernel(3, "gemm", 1_000), kernel(3, "gemm", 2_000)], [])
    assert (row["ms"], row["calls"]) == (3.0, 4.0)


@pytest.mark.parametrize(("picked", "shown"), [(None, 2), (1, 1)])
def test_selected_or_blamed_rank_is_compared_with_a_healthy_rank(analysis: Analysis, picked: int | None, shown: int) -> None:
    rank, healthy = compared_ranks(analysis, picked)

    assert rank == shown
    assert healthy not in (None, 2, shown)
    assert compared_ranks(msgspec.structs.replace(analysis, ranks=[]), None)[1] is None
