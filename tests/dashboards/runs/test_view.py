"""The list of runs: rows, verdicts on request, the address, and updates after changes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.dashboards.blocks import only, page_links, page_text, text_of
from tests.dashboards.recorded_run import START_NS

from rankscope.analysis.engine import analyze
from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.result.analysis import Analysis, Verdict
from rankscope.analysis.result.stored import store_verdict, stored_verdict
from rankscope.base.errors import InputError, RankscopeError
from rankscope.dashboards.data.brief import StoredBrief, brief_of
from rankscope.dashboards.data.memory_cache import FACTOR, MemoryCache, adaptive_lifetime
from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.data.source import NotReadyError
from rankscope.dashboards.live.grid import column_def
from rankscope.dashboards.model.line import Span, pieces
from rankscope.dashboards.model.page import Heading, RedrawMark, SearchTable, walk
from rankscope.dashboards.model.run_head import run_head
from rankscope.dashboards.runs.view import COLUMNS, MOST_FOLLOWED, PAGE, asked_row, first_row, picked_run, rows_of
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.dashboards.web.config import DashboardConfig

WriteRun = Callable[..., Path]


def listed(source: Any) -> SearchTable:
    """Return the table of the list of runs."""
    return only(PAGE.blocks(source, "", DashboardConfig()), SearchTable)


def test_rows_are_listed_at_once_and_verdicts_on_request(memory_runs: Any) -> None:
    (row,) = listed(memory_runs).rows()
    assert memory_runs.analysed == 0, "a list of thousands analyses nothing by itself"
    assert (row["name"], row["ranks"], row["hosts"], row["ask"]) == ("bert-base", 4, 2, True)
    assert "sentence" not in row
    assert "steps" not in row, "not known, and not 0"

    (collected,) = rows_of(memory_runs, ["run-1"])

    assert "makes the other 3 ranks wait" in collected["sentence"]
    assert (collected["id"], collected["kind"], collected["kind_tone"]) == ("run-1", "Straggler", "bad")
    assert (collected["steps"], collected["lost"], collected["cost"], collected["currency"]) == (60, 12.4, 31.0, "USD")
    assert "ask" not in collected


def test_hints_of_hours_and_rates_name_the_steps_covered(memory_runs: Any) -> None:
    hints = {column.field: column_def(column).get("headerTooltip", "") for column in listed(memory_runs).columns}
    assert all("typical" in hints[field] for field in ("lost", "step_ms", "samples", "tokens"))
    assert "rare" in hints["lost"]


def test_main_columns_come_first_and_fit_the_screen(memory_runs: Any) -> None:
    runs = listed(memory_runs)
    shown = ("name", "kind", "at_fault", "cause", "lost_share", "step_ms", "state", "ranks", "health")
    assert tuple(column.field for column in runs.columns[: len(shown)]) == shown
    marks, frame = 46, 90
    # also of simulated runs, which have two badges in State
    assert marks + frame + sum(column.width for column in runs.columns[: len(shown)]) <= 1280
    narrow = [column.narrow for column in runs.columns if column.narrow]
    assert max(narrow) == next(column.narrow for column in runs.columns if column.field == "kind"), "the badge is whole"
    assert sum(narrow) <= 390 - 60
    assert runs.rows()[0]["start"].endswith(" UTC"), "the saved table has one time zone"


def test_row_shows_blamed_ranks_cause_and_lost_share(memory_runs: Any, analysis: Analysis, table: StepTable) -> None:
    (row,) = rows_of(memory_runs, ["run-1"])
    assert (row["at_fault"], row["cause"]) == ("rank 2", "slow input")
    assert row["lost_share"] == pytest.approx(100 * (1 - 1 / (analysis.verdict.slowdown or 1)), abs=0.06)

    def at_fault(**fields: Any) -> str | None:
        verdict = Verdict(kind="straggler", summary="Slow.", **fields)
        return brief_of(msgspec.structs.replace(analysis, verdict=verdict)).at_fault

    assert at_fault(rank=17, ranks=[16, 17], hosts=["node0017", "node0018"]) == "host node0017 + 1"
    assert at_fault(ranks=[1, 2, 3, 9]) == "ranks 1 to 3, 9"
    assert at_fault() is None


def test_selected_or_first_run_is_shown_in_detail(memory_runs: Any, analysis: Analysis, table: StepTable) -> None:
    memory_runs.put(analysis, table, run_id="b", path="runs/other", losses="rank 1 killed")
    assert "makes the other 3 ranks wait" in text_of(picked_run(memory_runs, None))
    assert "runs/bert" in text_of(picked_run(memory_runs, "gone"))
    text = text_of(picked_run(memory_runs, "b"))
    assert "runs/other" in text
    assert "Rank 1 killed" in text
    memory_runs.problems["run-1"] = NotReadyError(Progress("reading"))
    with pytest.raises(NotReadyError):
        picked_run(memory_runs, "run-1")
    memory_runs.summaries.clear()
    assert picked_run(memory_runs, None) == []


def test_cached_verdict_is_shown_at_once(memory_runs: Any) -> None:
    memory_runs.cached.add("run-1")
    (row,) = listed(memory_runs).rows()
    assert row["kind"] == "Straggler"
    assert "ask" not in row


@pytest.mark.parametrize("current", [True, False])
def test_stored_verdict_is_shown_at_once_and_reanalysed_if_stale(memory_runs: Any, analysis: Analysis, *, current: bool) -> None:
    memory_runs.stored["run-1"] = StoredBrief(brief_of(analysis), current)
    row = first_row(memory_runs, memory_runs.summary("run-1"))
    assert (row["kind"], "ask" in row) == ("Straggler", not current)
    assert memory_runs.analysed == 0
    # And while it is judged again, it stays
    memory_runs.problems["run-1"] = NotReadyError(Progress("waiting for other analyses"))
    assert asked_row(memory_runs, memory_runs.summary("run-1")) == row


def test_experiment_tracker_links_are_limited_to_valid_web_urls(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run")
    info = json.loads((run / "run.json").read_text())
    info["trackers"] = {"W&B": "https://wandb.ai/a/b/runs/c", "Else": "javascript:alert(1)"}
    info["trackers"] |= {
        "Long": f"https://wandb.ai/{'a' * 2_000}",
        "Slash": "https://evil.example\\@wandb.ai/",
        "No": "https://[/",
    }
    (run / "run.json").write_text(json.dumps(info))
    assert DiskRuns(run).summary("run-1").trackers == (("W&B", "https://wandb.ai/a/b/runs/c"),)
    head = run_head(DiskRuns(run).summary("run-1"))
    assert [(link.text, link.href) for link in page_links(head)] == [("W&B run on wandb.ai", "https://wandb.ai/a/b/runs/c")]


def test_run_name_is_not_parsed_as_markup(memory_runs: Any) -> None:
    run = replace(memory_runs.summary("run-1"), name="`a` --b")
    (name,) = (block.text for block in walk(run_head(run)) if isinstance(block, Heading))
    assert pieces(name) == [Span("`a` --b")]


@pytest.mark.parametrize("status", ["finished", "failed", "silent"])
def test_hung_run_shows_hung_instead_of_its_final_status(
    memory_runs: Any, analysis: Analysis, table: StepTable, status: str
) -> None:
    verdict = Verdict(kind="hang", rank=1, ranks=[1], summary="Rank 1 did not arrive at all_reduce 66.")
    memory_runs.put(msgspec.structs.replace(analysis, verdict=verdict), table, status=status, losses="rank 0 killed")
    row = asked_row(memory_runs, memory_runs.summary("run-1"))
    assert (row["state"], row["state_tone"], row["kind"]) == ("Hung", "bad", "Hang")
    badges = text_of(run_head(memory_runs.summary("run-1"), "hang"), "|").split("|")
    assert {"Hung", "Rank 0 killed"} <= set(badges)
    assert not {"Finished", "Ended badly", "Silent"} & set(badges)


def test_health_begins_with_a_capital_letter(memory_runs: Any, analysis: Analysis, table: StepTable) -> None:
    def health(*warnings: str, **state: Any) -> str:
        source = msgspec.structs.replace(analysis.source, warnings=list(warnings))
        memory_runs.put(msgspec.structs.replace(analysis, source=source), table, **state)
        return str(asked_row(memory_runs, memory_runs.summary("run-1"))["health"])

    assert health() == "Nothing missing"
    assert health("no records of rank 3") == "No records of rank 3"
    assert health(losses="rank 0 killed") == "Rank 0 killed"
    assert health(unrecorded="rank 2").startswith("Recorder off")


def test_stored_verdict_is_stale_after_later_writes_to_the_run(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run")
    source = DiskRuns(run)
    summary = source.summary("run-1")
    assert source.stored_brief(summary) is None
    newest = summary.last_write_unix_ns or 0

    store_verdict(run, analyze([run]), as_of_unix_ns=newest + 1)
    stored = source.stored_brief(source.summary("run-1"))
    assert stored is not None, "the job ended while the list was open"
    assert (stored.is_current, stored.brief.kind) == (True, "straggler")
    assert source.summary("run-1").revision == summary.revision, "a verdict is no data of the run"

    (steps,) = run.glob("attempts/000/ranks/00000/steps-*.npy")
    os.utime(steps, ns=(newest + 2, newest + 2))
    stored = source.stored_brief(source.summary("run-1"))
    assert stored is not None
    assert not stored.is_current, "written to after the analysis began, if before its verdict was stored"


def test_dates_are_searched_and_filtered_in_local_time() -> None:
    started = column_def(next(column for column in COLUMNS if column.field == "start"))
    assert started["filterValueGetter"] == started["getQuickFilterText"] == {"function": "localTime(params.data.start)"}


@pytest.mark.parametrize("damage", ["{}", "not JSON", "9" * (1 << 21), '{"x": ' + "[" * 100_000, "fifo", "link"])
def test_unreadable_stored_verdict_is_none(tmp_path: Path, write_run: WriteRun, damage: str) -> None:
    run = write_run(tmp_path / "run")
    file = run / "verdict.json"
    if damage == "fifo":
        os.mkfifo(file)
    elif damage == "link":
        store_verdict(run, analyze([run]), as_of_unix_ns=1)
        file.rename(tmp_path / "elsewhere.json")
        file.symlink_to(tmp_path / "elsewhere.json")
    else:
        file.write_text(damage)
    assert stored_verdict(run) is None


def test_row_of_a_pending_analysis_shows_progress_and_is_polled(memory_runs: Any) -> None:
    memory_runs.problems["run-1"] = NotReadyError(Progress("reading the records of all ranks", 3, 8))
    row = asked_row(memory_runs, memory_runs.summary("run-1"))
    assert row["sentence"] == "Reading the records of all ranks: 3 of 8 …"
    assert row["ask"] is True


def test_row_of_a_failed_analysis_shows_the_reason_and_is_not_polled(memory_runs: Any) -> None:
    memory_runs.problems["run-1"] = InputError("runs/bert", "nothing recorded")
    row = asked_row(memory_runs, memory_runs.summary("run-1"))
    assert row["sentence"] == "runs/bert: nothing recorded"
    assert row["ask"] is False


def test_unreadable_run_is_listed_with_its_problem_and_no_link(memory_runs: Any, analysis: Analysis, table: StepTable) -> None:
    memory_runs.put(analysis, table, run_id="bad", name="broken", status="unreadable", problem="broken/run.json: not JSON")
    row = first_row(memory_runs, memory_runs.summary("bad"))
    assert (row["sentence"], row["kind"], row["problem"]) == ("broken/run.json: not JSON", "Unreadable", True)
    assert "href" not in row
    assert "ask" not in row
    assert asked_row(memory_runs, memory_runs.summary("bad")) == row


@pytest.mark.parametrize(
    "about", [{"status": "failed", "losses": "rank 1 killed"}, {"status": "live", "losses": "rank 1 killed"}]
)
def test_run_that_lost_ranks_shows_the_loss_and_is_not_green(
    memory_runs: Any, analysis: Analysis, table: StepTable, about: dict[str, Any]
) -> None:
    sound = msgspec.structs.replace(
        analysis,
        source=msgspec.structs.replace(analysis.source, warnings=["rank 1 killed before the end of training", "and so on"]),
        verdict=Verdict(kind="balanced", summary="No rank stands out."),
    )
    memory_runs.put(sound, table, **about)
    row = asked_row(memory_runs, memory_runs.summary("run-1"))
    assert row["health"] == "Rank 1 killed; rank 1 killed before the end of training (and 1 more)"
    assert (row["kind"], row["kind_tone"]) == ("Balanced", "plain")


def test_runs_of_one_name_differ_in_folder_and_start_second(tmp_path: Path, write_run: WriteRun) -> None:
    for second in (1, 2):
        write_run(tmp_path / f"job-{second}", run_id=f"run-{second}", start_unix_ns=START_NS + second * 10**9, steps=3)
    rows = listed(DiskRuns(tmp_path)).rows()
    assert [row["folder"] for row in rows] == ["job-2", "job-1"]
    assert rows[0]["start"] != rows[1]["start"]


def test_only_some_of_many_live_runs_are_followed(memory_runs: Any, analysis: Analysis, table: StepTable) -> None:
    for number in range(MOST_FOLLOWED + 2):
        memory_runs.put(analysis, table, run_id=f"live-{number}", status="live")
    memory_runs.put(analysis, table, run_id="starting", status="starting", ranks=0)
    rows = rows_of(memory_runs, ["starting", *(f"live-{number}" for number in range(MOST_FOLLOWED + 2)), "run-1"])
    assert memory_runs.analysed == MOST_FOLLOWED + 1
    assert [row["sentence"] for row in rows if "kind" not in row] == [
        "No rank has started yet.", *["Open it to see its verdict."] * 2
    ]  # fmt: skip
    assert rows[-1]["kind"] == "Straggler"


def test_empty_folder_shows_how_to_record_a_run_and_is_polled(tmp_path: Path, write_run: WriteRun) -> None:
    source = DiskRuns(tmp_path)
    page = PAGE.blocks(source, "", DashboardConfig())
    assert "rankscope run -- torchrun" in text_of(page)
    only(page, RedrawMark)  # so it is made again when there is a run

    write_run(tmp_path / "first", steps=12)
    write_run(tmp_path / "second", run_id="b", steps=12)

    page = PAGE.blocks(source, "", DashboardConfig())
    assert not [block for block in page if isinstance(block, RedrawMark)]
    assert [row["name"] for row in only(page, SearchTable).rows()] == ["bert-base", "bert-base"]
    assert "2 runs" in text_of(page)


def test_unreadable_folder_is_reported_on_the_page(memory_runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        raise RankscopeError("/shared/runs: stale file handle")

    monkeypatch.setattr(memory_runs, "runs", away)
    for path in ("/", "/lost-hours"):
        assert "stale file handle" in page_text(memory_runs, path)


def test_cached_listing_is_shared_by_many_viewers() -> None:
    now, asked = [0.0], []

    def look() -> int:
        asked.append(1)
        now[0] += 0.5  # duration of the call
        return len(asked)

    cache = MemoryCache(clock_s=lambda: now[0])
    assert [cache.get("runs", "", "", look, lifetime_s=adaptive_lifetime) for _ in range(2)] == [1, 1]
    now[0] += FACTOR * 0.5
    assert cache.get("runs", "", "", look, lifetime_s=adaptive_lifetime) == 2
