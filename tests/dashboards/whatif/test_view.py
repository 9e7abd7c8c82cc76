"""The what-if view: removed delays, their gain, and their figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.dashboards.blocks import draw, figure_names, pick, run_at, text_of, write

from rankscope.analysis.whatif.whatif_result import Effect, HostEffect
from rankscope.dashboards.charts.palette import palette
from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.data.source import NotReadyError
from rankscope.dashboards.model.state import PageState, host_item
from rankscope.dashboards.store.builders import InlineBuilder
from rankscope.dashboards.store.cache import Store
from rankscope.dashboards.store.disk import WHATIF_EVERY_S, DiskRuns
from rankscope.dashboards.whatif.counterfactuals import step_without
from rankscope.dashboards.whatif.data import week_cost_of
from rankscope.dashboards.whatif.view import VIEW, hidden_items, measure_blocks, saving_blocks

COLORS = palette("dark")
SLOW = 2


@pytest.fixture
def run(tmp_path: Path, write_run: Callable[..., Path]) -> RunData:
    return run_at(write_run(tmp_path / "run"))


def test_removing_the_slow_rank_shortens_the_step(run: RunData) -> None:
    answer = run.whatif.result
    assert answer.step_seconds is not None
    for items in (("rank:2",), ("cause:input",), ("rank:2", "rank:0"), ("rank:2", "cause:input"), ("all",)):
        thought = step_without(run, items)
        assert thought is not None
        assert thought.step_seconds == pytest.approx(answer.step_seconds - 0.04, abs=0.002), items
    assert step_without(run, ()) is None


def test_combinations_are_computed_only_for_combined_removals(run: RunData, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object) -> None:
        raise NotReadyError(Progress("combining"))

    monkeypatch.setattr(DiskRuns, "combinations", busy)
    for items in ((), ("rank:2",), ("all",), ("cause:input",), ("op:data", "rank:2")):
        assert write(VIEW, "whatif-answer", run, PageState(without=items)), items
    with pytest.raises(NotReadyError, match="Combining"):
        step_without(run, ("rank:2", "cause:input"))


def test_removing_a_host_removes_its_slow_ranks(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    run = run_at(write_run(tmp_path / "run", ranks=8))
    answer = run.whatif.result
    row = next(row for row in answer.by_host if row.host == "node-1")
    item = host_item("node-1")
    for items in ((item,), (item, "cause:input")):
        thought = step_without(run, items)
        assert thought is not None
        assert thought.label.startswith("host node-1")
        assert thought.step_seconds == pytest.approx((answer.step_seconds or 0) - 0.04, abs=0.002)
    assert row.saved_seconds == pytest.approx(0.04, abs=0.002)
    drawn = draw(VIEW, "whatif-ranks", run, PageState(without=(item,)), COLORS)
    assert {row[0] for row in drawn.table.rows} >= {item, "rank:2"}
    assert pick(VIEW, "whatif-ranks", run, PageState(), {"hovertext": item}).without == (item,)


def test_ranks_of_a_slow_host_share_the_bar_of_the_host(run: RunData) -> None:
    """Given hosts of two ranks, one with one slow rank and one slow as a whole, then the latter's ranks have no bars."""
    effect = run.whatif.result.by_rank[0]
    ranks = [msgspec.structs.replace(effect, rank=rank, saved_seconds=saved) for rank, saved in enumerate((0.04, 0, 1e-4, 2e-4))]
    hosts = [
        HostEffect(**{**fields_of(effect), "saved_seconds": saved}, host=host, ranks=of)
        for host, saved, of in (("a", 0.041, [0]), ("b", 0.05, [2, 3]))
    ]
    result = msgspec.structs.replace(run.whatif.result, by_rank=ranks, by_host=hosts)
    assert hidden_items(result) == {"host:a", "rank:2", "rank:3"}


def fields_of(effect: Effect) -> dict[str, Any]:
    """Return the fields that all effects have."""
    return {name: getattr(effect, name) for name in Effect.__struct_fields__}


def test_host_name_with_a_comma_survives_the_url() -> None:
    state = PageState(without=(host_item("a,b/c"), "rank:1"))
    assert PageState.parse(state.search) == state


@pytest.mark.parametrize(
    ("items", "why"),
    [
        (("rank:77", "rank:0"), "does not have rank 77"),
        (("rank:77",), "does not have rank 77"),
        (("cause:nonsense", "rank:0"), "does not have nonsense"),
        (("op:data", "rank:2"), "one at a time"),
        (("rank:x",), "one at a time"),
        (("<b>",), "one at a time"),
    ],
)
def test_impossible_removal_shows_the_reason(run: RunData, items: tuple[str, ...], why: str) -> None:
    thought = step_without(run, items)

    assert thought is not None
    assert thought.step_seconds is None
    assert why in thought.why
    assert why in text_of(write(VIEW, "whatif-answer", run, PageState(without=items)))


def test_limit_of_combined_ranks_is_reported(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    run = run_at(write_run(tmp_path / "run", ranks=12, steps=20, windows=False))

    thought = step_without(run, [f"rank:{rank}" for rank in range(9)])

    assert thought is not None
    assert "At most 8 ranks" in thought.why


def test_minor_cause_can_be_removed_only_alone(run: RunData) -> None:
    assert run.combinations is not None
    causes = [row.cause for row in run.whatif.result.by_cause]
    assert list(run.combinations.causes) == causes[:4]

    alone, together = (step_without(run, items) for items in ((f"cause:{causes[4]}",), (f"cause:{causes[4]}", "rank:2")))

    assert alone is not None
    assert alone.step_seconds == run.whatif.result.by_cause[4].without_step_seconds
    assert together is not None
    assert together.step_seconds is None
    assert "only alone" in together.why


def test_price_in_the_url_overrides_the_recorded_price(run: RunData) -> None:
    answer = run.whatif
    recorded, result = week_cost_of(answer), week_cost_of(answer, price=5.0, currency="EUR")

    assert (recorded.price_per_gpu_hour, recorded.currency) == (2.5, "USD")
    assert recorded.gpu_hours == 168 * 4
    assert result.money_of(0.01) == pytest.approx(2 * (recorded.money_of(0.01) or 0))
    bars = draw(VIEW, "whatif-ranks", run, PageState(price=5.0, currency="EUR"), COLORS).figure
    assert any(text.text.endswith("EUR a week") for text in bars.layout.annotations)
    assert "as entered above" in text_of(write(VIEW, "whatif-answer", run, PageState(without=("rank:2",), price=5.0)))


def test_ranks_on_cpus_without_a_price_have_no_gpu_hours(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    path = write_run(tmp_path / "run")
    info = msgspec.json.decode((path / "run.json").read_bytes())
    (path / "run.json").write_bytes(msgspec.json.encode({**info, "price_per_gpu_hour": None}))
    run = run_at(path)

    text = text_of(write(VIEW, "whatif-answer", run, PageState(without=("rank:2",))))

    assert "enter a price" in text
    assert "not known" in text
    assert all(row[-2:] == (None, None) for row in draw(VIEW, "whatif-ranks", run, PageState(), COLORS).table.rows)


def test_weekly_savings_account_for_rare_steps(run: RunData) -> None:
    answer = run.whatif
    source = msgspec.structs.replace(answer.result.source, rare_steps=3, rare_share=0.25, steps_left_out=8, estimated_share=0.031)
    rare = msgspec.structs.replace(answer, result=msgspec.structs.replace(answer.result, source=source))
    assert week_cost_of(rare).gpu_hours_of(0.01) == pytest.approx(0.75 * (week_cost_of(answer).gpu_hours_of(0.01) or 0))
    thought = step_without(run, ("rank:2",))
    shown = text_of(saving_blocks(rare.result, thought, week_cost_of(rare), price_given=False))
    assert all(fact in shown for fact in ("typical step", "3 rare steps", "25%", "rankscope analyze"))
    about = text_of(measure_blocks(rare, goes_on=False))
    assert all(fact in about for fact in ("rare", "3.1%", "estimated"))


def test_bars_range_from_the_actual_to_the_ideal_step_time(run: RunData) -> None:
    drawn = draw(VIEW, "whatif-ranks", run, PageState(without=("rank:2",)), COLORS)

    actual, parts, ideal = drawn.figure.data
    assert parts.hovertext[0] == "rank:2"
    assert parts.x[0] < actual.x[0]
    assert ideal.x[0] <= min(parts.x)
    assert "✓" in drawn.figure.layout.yaxis.ticktext[1]
    assert drawn.table.rows[0][0] == "rank:2"
    assert "rank 2 gains most" in drawn.sentence
    causes = draw(VIEW, "whatif-parts", run, PageState(), COLORS)
    assert {row[0] for row in causes.table.rows} >= {"cause:input", "op:data"}


def test_click_adds_or_removes_a_counterfactual_item(run: RunData) -> None:
    result = pick(VIEW, "whatif-ranks", run, PageState(without=("cause:gc",)), {"hovertext": "rank:2"})

    assert result.without == ("cause:gc", "rank:2")
    assert pick(VIEW, "whatif-ranks", run, result, {"hovertext": "rank:2"}).without == ("cause:gc",)
    assert pick(VIEW, "whatif-ranks", run, result, {"hovertext": ""}).without == ()


def test_fleet_measures_are_shown_with_their_meaning(run: RunData) -> None:
    """Given one straggler of four ranks, when the measures are shown, then M_W is near 1, and M_S does not apply."""
    text = text_of(write(VIEW, "whatif-fleet", run, PageState()))

    assert "a few slow ranks" in text
    assert "M_S" not in text, "the job has no stages"
    assert "step records: 4 ranks" in text


def test_insufficient_data_shows_a_note_and_no_figures(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    run = run_at(write_run(tmp_path / "run", ranks=1, slow_rank=None, windows=False))

    assert "Not enough data" in text_of(VIEW.blocks(run, PageState(without=("all",))))
    assert figure_names(VIEW, run, PageState()) == []


def test_pending_what_if_shows_progress(run: RunData, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object) -> None:
        raise NotReadyError(Progress("playing the run", 3, 8))

    monkeypatch.setattr(DiskRuns, "whatif", busy)

    with pytest.raises(NotReadyError, match="Playing the run: 3 of 8"):
        VIEW.blocks(run, PageState())


def test_whatif_of_a_live_run_is_recomputed_periodically(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    path, now = write_run(tmp_path / "run", finished=False), [1e9]
    source = DiskRuns(path, InlineBuilder(Store(tmp_path / "store")), clock_s=lambda: now[0])
    first = source.whatif("run-1")

    assert source.whatif("run-1") is first
    now[0] += WHATIF_EVERY_S
    assert source.whatif("run-1") is not first


def test_only_a_live_run_keeps_its_what_if_during_recomputation(
    tmp_path: Path, write_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, over, now = write_run(tmp_path / "run", finished=False), write_run(tmp_path / "over"), [1e9]
    source = DiskRuns(path, InlineBuilder(Store(tmp_path / "store")), clock_s=lambda: now[0])
    first = source.whatif("run-1")

    def busy(*_: object) -> Path:
        raise NotReadyError(Progress("Playing the run"))

    monkeypatch.setattr(InlineBuilder, "result", busy)
    now[0] += WHATIF_EVERY_S
    assert source.whatif("run-1") is first
    for info in over.rglob("rank.json"):
        (path / info.relative_to(over)).write_bytes(info.read_bytes())
    with pytest.raises(NotReadyError):
        source.whatif("run-1")


def test_two_live_runs_with_one_id_have_separate_what_if_results(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    store = Store(tmp_path / "store")
    runs = [write_run(tmp_path / name, slow_rank=slow, finished=False) for name, slow in (("a", 2), ("b", None))]
    slow, even = (DiskRuns(run, InlineBuilder(store), clock_s=lambda: 1e9).whatif("run-1").result.slowdown for run in runs)

    assert slow is not None
    assert even is not None
    assert slow > 1.3 > even


@pytest.mark.parametrize(
    ("search", "price", "currency"),
    [
        ("?price=2.5&currency=eur", 2.5, "EUR"),
        ("?price=-1&currency=<b>", None, None),
        ("?price=nan&currency=EURO", None, None),
        ("?price=1e9", None, None),
        ("?price=0", 0.0, None),
    ],
)
def test_price_and_currency_are_parsed_from_the_url(search: str, price: float | None, currency: str | None) -> None:
    state = PageState.parse(search)

    assert (state.price, state.currency) == (price, currency)
    assert PageState.parse(state.search) == state
