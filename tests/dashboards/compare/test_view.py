"""The page that compares runs: its texts, its figures, and runs that cannot be compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.dashboards.blocks import draw_at, page_for, page_text

from rankscope.analysis.compare.compare_result import RankShift
from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.result.analysis import Analysis
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.charts.palette import palette
from rankscope.dashboards.compare.figures import host_rows, part_differences
from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.data.source import NotReadyError, UnknownRunError
from rankscope.dashboards.store.builders import JobBuilder
from rankscope.dashboards.store.cache import Store
from rankscope.dashboards.store.disk import DiskRuns

WriteRun = Callable[..., Path]
UntilReady = Callable[[Callable[[], Any]], Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def source(folder: Path, write_run: WriteRun) -> DiskRuns:
    """Source of a sound run, one with a slow data loader, a larger one, and one that is too short."""
    if not (folder / "sound").exists():
        write_run(folder / "sound", run_id="sound", name="monday", slow_rank=None, steps=120)
        write_run(folder / "slow", run_id="slow", name="tuesday", slow_rank=2, steps=120)
        write_run(folder / "large", run_id="large", name="eight", slow_rank=None, ranks=8, steps=120)
        write_run(folder / "short", run_id="short", name="short", slow_rank=None, steps=8)
    return DiskRuns(folder)


def compare_page(source: Any, search: str) -> str:
    return page_text(source, "/compare", search)


def test_page_shows_what_became_worse_and_where(source: DiskRuns) -> None:
    page = compare_page(source, "?runs=sound,slow")
    for expected in (
        "Worse",
        "tuesday is slower than monday",
        "monday",
        "tuesday",
        "/run/slow",
        "4 of 4",
        "samples/s",
        "compare-parts",
    ):
        assert expected in page, expected
    parts, ready = draw_at(source, "/compare", "compare-parts", "?runs=sound,slow")
    assert ready
    assert parts.sentence.startswith("tuesday is slower than monday")
    worse = next(trace for trace in parts.figure.data if trace.name == "worse")
    names = [item[0] for item in worse.customdata]
    assert "step time" in names
    step = next(row for row in parts.table.rows if row[1] == "step")
    assert step[5] == pytest.approx(40_000, rel=0.05), "the loader of rank 2 takes so much longer"
    assert all(len(row) == len(parts.table.columns) for row in parts.table.rows)


def test_swapped_comparison_is_better(source: DiskRuns) -> None:
    assert "Better" in compare_page(source, "?runs=slow,sound")


def test_distributions_cover_the_compared_steps(source: DiskRuns) -> None:
    drawn, _ = draw_at(source, "/compare", "compare-steps", "?runs=sound,slow")
    sound, slow = drawn.figure.data
    assert (sound.name, slow.name) == ("monday", "tuesday")
    assert sound.line.dash != slow.line.dash, "not by colour alone"
    assert list(sound.x) == sorted(sound.x)
    assert slow.x[50] > 1.5 * sound.x[50]
    assert drawn.sentence.startswith("Median step time: monday ")
    assert len(drawn.table.rows) == 2 * 101


def test_changes_can_be_shown_per_host_or_per_rank(source: DiskRuns) -> None:
    hosts, _ = draw_at(source, "/compare", "compare-ranks", "?runs=sound,slow")
    ranks, _ = draw_at(source, "/compare", "compare-ranks", "?runs=sound,slow&by=rank")
    assert set(hosts.figure.layout.yaxis.ticktext) == {"node-0", "node-1"}
    assert ranks.figure.layout.yaxis.ticktext[0] == "rank 2 on node-1"
    assert "rank 2 on node-1" in ranks.sentence


def test_replaced_node_is_named_with_its_predecessor() -> None:
    def shift(rank: int, host_a: str, host_b: str, change: float, outcome: Any) -> RankShift:
        return RankShift(
            rank=rank, host_a=host_a, host_b=host_b, own_a_us=1.0, own_b_us=1.0, excess_a_us=0.0, excess_b_us=change,
            typical=None, average=None, phase=None, outcome=outcome,
        )  # fmt: skip

    rows = host_rows([shift(0, "n1", "n9", 4.0, "worse"), shift(1, "n1", "n9", 2.0, "worse"), shift(2, "n2", "n2", 0.0, "same")])
    assert [(row.name, row.difference, row.outcome) for row in rows] == [("n9 (before n1)", 3.0, "worse"), ("n2", 0.0, "same")]


@pytest.mark.parametrize("by", ["host", "rank"])
def test_changes_without_enough_data_are_not_called_unchanged(source: DiskRuns, by: str) -> None:
    drawn, _ = draw_at(source, "/compare", "compare-ranks", f"?runs=slow,short&by={by}")
    assert {trace.name for trace in drawn.figure.data} == {"not enough data"}
    assert "Not enough data" in drawn.sentence
    assert not any(trace.error_x.visible for trace in drawn.figure.data), "a mark without an interval has no whisker"


def test_headline_is_one_sentence_and_the_axis_includes_zero(source: DiskRuns) -> None:
    comparison = source.compared(("sound", "slow"), None).result.comparisons[0]
    assert comparison.summary == f"{comparison.sentence} {comparison.details}"
    assert "Rank 2" in comparison.details
    assert "Rank 2" not in comparison.sentence
    drawn = part_differences(comparison, palette("light"))
    low, high = drawn.figure.layout.xaxis.range
    assert low < 0 < high


def test_runs_of_different_sizes_show_no_part_differences(source: DiskRuns) -> None:
    page = compare_page(source, "?runs=sound,large")
    assert "ranks" in page
    assert "rankscope compare" in page
    assert "compare-parts" not in page


def test_one_run_is_compared_before_and_after_a_step(source: DiskRuns) -> None:
    page = compare_page(source, "?runs=sound&at=60")
    parts, _ = draw_at(source, "/compare", "compare-parts", "?runs=sound&at=60")
    assert "after minus before" in parts.figure.layout.xaxis.title.text
    assert "monday: after against before step 60" in page
    course, _ = draw_at(source, "/compare", "compare-course", "?runs=sound&at=60")
    assert [shape.x0 for shape in course.figure.layout.shapes] == [60]
    assert "step 600 does not divide it" in compare_page(source, "?runs=sound&at=600")


def test_too_short_run_is_reported_as_not_enough_data(source: DiskRuns) -> None:
    page = compare_page(source, "?runs=sound,short")
    assert "Not enough data" in page
    drawn, _ = draw_at(source, "/compare", "compare-steps", "?runs=sound,short")
    assert drawn.figure.data[0].name == "monday"
    course, _ = draw_at(source, "/compare", "compare-course", "?runs=sound,short")
    assert [line.name for line in course.figure.data] == ["monday", "short"]


def test_chosen_pair_is_drawn_and_every_pair_is_in_the_table(source: DiskRuns) -> None:
    search = "?runs=sound,slow,short"
    page = compare_page(source, f"{search}&pair=short")
    for expected in ("short against monday", "tuesday", "Not enough data", "Worse", "pair=tuesday"):
        assert expected in page, expected
    first, _ = draw_at(source, "/compare", "compare-parts", search)
    assert "tuesday<br>minus monday" in first.figure.layout.xaxis.title.text
    chosen, _ = draw_at(source, "/compare", "compare-parts", f"{search}&pair=short")
    assert chosen.sentence != first.sentence


@pytest.mark.parametrize(("outcome", "words"), [("untested", "not tested"), ("insufficient_data", "not enough data")])
def test_untested_difference_is_not_called_insignificant(source: DiskRuns, outcome: Any, words: str) -> None:
    comparison = source.compared(["sound", "slow"]).result.comparisons[0]
    quantities = [msgspec.structs.replace(quantity, outcome=outcome, average=None) for quantity in comparison.quantities]
    drawn = part_differences(msgspec.structs.replace(comparison, quantities=quantities), palette("light"))
    assert [trace.name for trace in drawn.figure.data] == [words]


def test_run_labels_are_unique_and_escaped(folder: Path, write_run: WriteRun) -> None:
    root = folder / "twice"
    for name in ("first", "second"):
        if not (root / name).exists():
            write_run(root / name, run_id=name, name="<b>bert</b>", slow_rank=None, steps=40)
    source = DiskRuns(root)
    drawn, _ = draw_at(source, "/compare", "compare-steps", "?runs=first,second")
    names = [line.name for line in drawn.figure.data]
    assert len(set(names)) == 2
    assert [name.rpartition(" ")[2] for name in names] == ["first", "second"]
    assert "<b>bert" not in drawn.figure.to_json()
    parts, _ = draw_at(source, "/compare", "compare-parts", "?runs=first,second")
    assert "<b>bert" not in parts.figure.to_json().replace("\\u003c", "<")


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        ("", "names no run"),
        ("?runs=sound", "names one run"),
        ("?runs=sound,slow&at=3", "several"),
        (f"?runs={','.join(map(str, range(13)))}", "at most 12"),
        ("?runs=sound,nope", "there is no run 'nope'"),
        ("?runs=sound,sound", "names one run"),
    ],
)
def test_invalid_comparison_shows_the_reason(source: DiskRuns, search: str, expected: str) -> None:
    page = compare_page(source, search)
    assert expected in page
    assert "See all runs" in page


def test_pending_comparison_shows_progress_and_polls(memory_runs: Any, analysis: Analysis, table: StepTable) -> None:
    memory_runs.put(analysis, table, run_id="b")
    memory_runs.problems["compare"] = NotReadyError(Progress("reading the runs", 1, 2))
    page = page_for("/compare", "?runs=run-1,b", memory_runs)
    assert "Reading the runs: 1 of 2" in compare_page(memory_runs, "?runs=run-1,b")
    assert page.shown["whole"]
    assert page.shown["every_ms"] > 0
    assert draw_at(memory_runs, "/compare", "compare-steps", "?runs=run-1,b")[1] is False


def test_comparison_is_cached_while_its_runs_are_unchanged(source: DiskRuns) -> None:
    assert source.compared(["sound", "slow"]) is source.compared(["sound", "slow"])
    with pytest.raises(UnknownRunError):
        source.compared(["sound", "nope"])


@pytest.mark.slow
def test_comparisons_are_computed_in_the_background(
    source: DiskRuns, folder: Path, tmp_path: Path, until_ready: UntilReady
) -> None:
    beside = DiskRuns(folder, JobBuilder(Store(tmp_path / "cache")))
    with pytest.raises(NotReadyError):
        beside.compared(["sound", "slow"])
    made = until_ready(lambda: beside.compared(["sound", "slow"]))
    assert made.result.comparisons[0].outcome == source.compared(["sound", "slow"]).result.comparisons[0].outcome
    with pytest.raises(RankscopeError, match="does not divide it"):
        until_ready(lambda: beside.compared(["sound"], 10**6))
