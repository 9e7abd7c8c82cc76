"""The page of lost GPU-hours by host and cause over many runs, and of runs that are not in the sum."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dashboards.blocks import draw_at, page_text

from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.result.analysis import Analysis, RareSteps, Verdict
from rankscope.analysis.result.stored import GpuTimeLoss, Losses, losses_of
from rankscope.dashboards.app import create_app
from rankscope.dashboards.data.brief import Brief, StoredBrief, brief_of
from rankscope.dashboards.data.source import RunSummary
from rankscope.dashboards.live.pages import Pages
from rankscope.dashboards.lost_hours.data import RunLoss, cluster_losses
from rankscope.dashboards.lost_hours.figures import lost_hours_table
from rankscope.dashboards.lost_hours.view import PAGE
from rankscope.dashboards.web.config import DashboardConfig


def run(run_id: str, *, start: int | None = 100, problem: str | None = None) -> RunSummary:
    status: Any = "unreadable" if problem else "finished"
    return RunSummary(
        run_id=run_id, name=f"job {run_id}", path=run_id, revision="a", status=status, start_unix_ns=start, problem=problem
    )


def lost(host: str | None, hours: float, cause: Any = "input", **more: Any) -> GpuTimeLoss:
    return GpuTimeLoss(**{"host": host, "gpu_uuid": None, "rank": 1, "cause": cause, "gpu_hours": hours, "cost": None, **more})


def brief(*losses: GpuTimeLoss, **more: Any) -> Brief:
    gpus: dict[str, Any] = {name: more.pop(name) for name in ("on_gpus", "host_gpu_hours") if name in more}
    result = Losses(**{"on_gpus": True, "lost_by": list(losses), **gpus})
    about: dict[str, Any] = {"kind": "straggler", "summary": "", "losses": result, "currency": "USD", **more}
    return Brief(**about)


def page(source: Any, search: str = "") -> str:
    return page_text(source, PAGE.path, search)


def test_host_blamed_by_several_runs_is_listed_first() -> None:
    losses = cluster_losses(
        [
            RunLoss(run("a"), brief(lost("node-1", 1.0), host_gpu_hours={"node-1": 8.0, "node-2": 8.0})),
            RunLoss(run("b"), brief(lost("node-1", 2.0, "gc", cost=5.0), host_gpu_hours={"node-1": 4.0})),
            RunLoss(run("c"), brief(lost("node-2", 9.0))),
            RunLoss(run("d"), brief(host_gpu_hours={"node-1": 3.0})),
        ]
    )
    first, second = losses.hosts
    assert (first.host, first.repeated, first.gpu_hours) == ("node-1", True, 3.0)
    assert first.by_cause == {"input": 1.0, "gc": 2.0}
    assert (first.cost, first.unpriced_hours) == ({"USD": 5.0}, 1.0)
    assert list(first.runs) == ["a", "b"]
    assert first.rate == pytest.approx(3 / 15), "also what it trained while nobody blamed it"
    assert (second.host, second.repeated) == ("node-2", False)
    assert [item.run_id for item in losses.counted] == ["a", "b", "c", "d"]


def test_hours_lost_in_rare_steps_are_listed_separately(memory_runs: Any, analysis: Analysis, table: StepTable) -> None:
    collected = [
        RunLoss(run("a"), brief(lost("node-1", 1.0, "checkpoint", steps="rare"), lost("node-1", 3.0, "compute"))),
        RunLoss(run("b"), brief(lost("node-1", 2.0, "compute", steps="rare"))),
    ]
    (host,) = cluster_losses(collected).hosts
    assert (host.by_cause, host.rare_by_cause) == ({"checkpoint": 1.0, "compute": 5.0}, {"checkpoint": 1.0, "compute": 2.0})
    rows = {row[1]: (row[2], row[-1]) for row in lost_hours_table(cluster_losses(collected)).rows}
    assert rows == {"checkpoint": (1.0, 1.0), "compute": (5.0, 2.0)}
    rare = msgspec.structs.replace(with_loss(analysis), rare_steps=rare_of(with_loss(analysis).findings[0].summary))
    memory_runs.put(rare, table)
    memory_runs.cached.add("run-1")
    assert "12.4 GPU-h in rare steps" in page(memory_runs)


def rare_of(summary: str) -> RareSteps:
    return RareSteps(
        count=1, of_steps=60, steps=[9], typical_us=1e5, longest_us=9e5, share=0.1, lost_us=8e5, rank=None, moves=False,
        host=None, cause=None, summary=summary,
    )  # fmt: skip


def test_cost_of_a_loss_does_not_depend_on_the_verdict_cost(analysis: Analysis) -> None:
    # given a finding beside a verdict that costs nothing
    finding = msgspec.structs.replace(analysis.findings[0], gpu_hours_lost=2.0)
    verdict = msgspec.structs.replace(analysis.verdict, kind="balanced", gpu_hours_lost=None, cost=None)
    result = brief_of(msgspec.structs.replace(analysis, verdict=verdict, findings=[finding]))
    assert result.losses is not None
    assert [item.cost for item in result.losses.lost_by] == pytest.approx([5.0])
    assert result.currency == "USD"


def test_runs_left_out_of_the_sum_are_listed_by_reason() -> None:
    losses = cluster_losses(
        [
            RunLoss(run("new"), None),
            RunLoss(run("broken", problem="not JSON"), None),
            RunLoss(run("short"), brief(kind="insufficient_data")),
            RunLoss(run("cpu"), brief(on_gpus=False)),
            RunLoss(run("undated", start=None), brief(lost("node-1", 1.0))),
            RunLoss(run("old", start=5), brief(lost("node-1", 1.0))),
            RunLoss(run("counted"), brief(lost("node-1", 0.5))),
        ],
        since_unix_ns=50,
    )
    names = {
        field: [item.run_id for item in getattr(losses, field)]
        for field in ("not_analysed", "unreadable", "too_little", "without_gpus", "undated", "counted")
    }
    assert names == {
        "not_analysed": ["new"], "unreadable": ["broken"], "too_little": ["short"], "without_gpus": ["cpu"],
        "undated": ["undated"], "counted": ["counted"],
    }  # fmt: skip
    assert losses.gpu_hours == 0.5


def test_loss_rate_of_an_unknown_host_is_unknown() -> None:
    (loss,) = cluster_losses([RunLoss(run("a"), brief(lost(None, 1.0))), RunLoss(run("b"), brief(lost(None, 1.0)))]).hosts
    assert loss.rate is None
    assert not loss.repeated, "nobody is not an offender"


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.floats(0, 1e6)), max_size=20))
def test_total_loss_equals_the_sum_over_hosts(losses: list[tuple[str | None, float]]) -> None:
    collected = [RunLoss(run(str(number)), brief(lost(host, hours))) for number, (host, hours) in enumerate(losses)]
    summed = cluster_losses(collected)
    assert summed.gpu_hours == pytest.approx(sum(hours for _, hours in losses))
    assert sum(len(host.runs) for host in summed.hosts) == len(losses)


def test_loss_is_charged_to_the_host_of_the_blamed_rank(analysis: Analysis) -> None:
    finding = msgspec.structs.replace(analysis.findings[0], gpu_hours_lost=12.4)
    (charged,) = losses_of(msgspec.structs.replace(analysis, findings=[finding])).lost_by
    assert (charged.host, charged.rank, charged.cause, charged.gpu_hours) == ("node-1", 2, "input", 12.4)
    assert charged.gpu_uuid == analysis.ranks[2].gpu_uuid
    assert charged.cost == pytest.approx(31.0)


def test_loss_of_ranks_on_several_hosts_is_charged_to_no_host(analysis: Analysis) -> None:
    verdict = msgspec.structs.replace(analysis.verdict, ranks=[0, 2])
    finding = msgspec.structs.replace(analysis.findings[0], gpu_hours_lost=1.0)
    (charged,) = losses_of(msgspec.structs.replace(analysis, verdict=verdict, findings=[finding])).lost_by
    assert (charged.host, charged.rank, charged.gpu_uuid) == (None, None, None)
    both = msgspec.structs.replace(analysis.verdict, ranks=[2, 3])
    (charged,) = losses_of(msgspec.structs.replace(analysis, verdict=both, findings=[finding])).lost_by
    assert (charged.host, charged.rank) == ("node-1", None)


def test_loss_of_a_host_at_fault_is_charged_to_the_host_alone(analysis: Analysis) -> None:
    verdict = msgspec.structs.replace(analysis.verdict, ranks=[0, 2, 3], hosts=["node-1"])
    finding = msgspec.structs.replace(
        analysis.findings[0], gpu_hours_lost=12.4, rank=2, ranks=[2, 3], host="node-1", whole_host=True
    )
    (charged,) = losses_of(msgspec.structs.replace(analysis, verdict=verdict, findings=[finding])).lost_by
    assert (charged.host, charged.rank, charged.gpu_hours) == ("node-1", None, 12.4)


def test_trained_gpu_hours_exclude_cpu_ranks(analysis: Analysis) -> None:
    trained = losses_of(analysis).host_gpu_hours
    assert trained == pytest.approx(dict.fromkeys(("node-0", "node-1"), 2 * 60 * 77300.0 / 3600000000.0))
    cpus = msgspec.structs.replace(analysis, ranks=[msgspec.structs.replace(rank, device_kind="cpu") for rank in analysis.ranks])
    assert losses_of(cpus).host_gpu_hours == {}
    assert not losses_of(cpus).on_gpus


def with_loss(analysis: Analysis) -> Analysis:
    return msgspec.structs.replace(analysis, findings=[msgspec.structs.replace(analysis.findings[0], gpu_hours_lost=12.4)])


def test_page_lists_hosts_causes_runs_and_runs_left_out(memory_runs: Any, analysis: Analysis, table: StepTable) -> None:
    for name in ("one", "two"):
        memory_runs.put(with_loss(analysis), table, run_id=name, name=name)
        memory_runs.cached.add(name)
    memory_runs.put(analysis, table, run_id="bad", name="broken", status="unreadable", problem="not JSON")
    shown = page(memory_runs)
    for expected in (
        "⚑ 2 runs", "node-1", "slow input 24.8 GPU-h", "62.00 USD", "/run/one", "/run/two", "2 of 4", "1 run not analysed",
        "1 run unreadable", "broken",
    ):  # fmt: skip
        assert expected in shown, expected


@pytest.mark.parametrize(("current", "counted"), [(True, "1 of 1"), (False, "0 of 1")])
def test_current_stored_verdict_counts_without_an_analysis(
    memory_runs: Any, analysis: Analysis, *, current: bool, counted: str
) -> None:
    memory_runs.stored["run-1"] = StoredBrief(brief_of(with_loss(analysis)), current)
    assert counted in page(memory_runs)
    memory_runs.stored["run-1"] = StoredBrief(msgspec.structs.replace(brief_of(analysis), losses=None), is_current=True)
    assert "1 run not analysed" in page(memory_runs), "stored by an older version"


def test_loss_without_counted_runs_is_unknown_and_not_zero(memory_runs: Any) -> None:
    shown = page(memory_runs)
    assert "not known" in shown
    assert "0 GPU-h" not in shown, "nothing is counted, so nothing is known to be lost"
    assert draw_at(memory_runs, PAGE.path, "lost-hours-bars", "")[0].sentence == "No run is counted yet."


def test_figure_and_its_table_match_the_page(memory_runs: Any, analysis: Analysis, table: StepTable) -> None:
    memory_runs.put(with_loss(analysis), table)
    memory_runs.cached.add("run-1")
    drawn, ready = draw_at(memory_runs, PAGE.path, "lost-hours-bars", "?since=9999d")
    assert ready
    assert drawn.sentence == "node-1 cost most: 12.4 GPU-h of 12.4 GPU-h lost."
    assert [tuple(bar.x) for bar in drawn.figure.data] == [(12.4,)]
    assert drawn.table.rows[0][:4] == ("node-1", "input", 12.4, 1)
    assert len(drawn.table.columns) == len(drawn.table.rows[0])


def test_lost_hours_can_be_downloaded_as_csv(memory_runs: Any, analysis: Analysis, table: StepTable) -> None:
    memory_runs.put(with_loss(analysis), table)
    memory_runs.cached.add("run-1")
    http = create_app(memory_runs).server.test_client()
    assert http.get("/lost-hours/data/lost-hours-bars.csv").text.splitlines()[1].startswith("node-1,input,12.4,1,")
    assert http.get("/lost-hours/data/nothing.csv").status_code == 404


def test_time_range_in_the_url_selects_the_runs(memory_runs: Any, analysis: Analysis, table: StepTable) -> None:
    memory_runs.put(with_loss(analysis), table, start_unix_ns=1)
    memory_runs.cached.add("run-1")
    assert "There is no run in this time range" in page(memory_runs, "?since=30d")


def test_one_request_analyses_all_finished_runs_for_all_viewers(memory_runs: Any, analysis: Analysis, table: StepTable) -> None:
    memory_runs.put(analysis, table)
    memory_runs.put(analysis, table, run_id="live", name="live", status="live")
    pages = Pages(memory_runs, DashboardConfig())
    before = pages.changes(PAGE.path, "", redraw=False, rows=[], work=False)
    clicked = pages.changes(PAGE.path, "", redraw=False, rows=[], work=True)
    assert memory_runs.requested == ["run-1"], "a live run is analysed while its page is open"
    assert before["version"] != clicked["version"] == pages.changes(PAGE.path, "", redraw=False, rows=[], work=False)["version"]
    assert memory_runs.requested == ["run-1"], "the poll of a page starts nothing"
    assert "1 run still to be analysed" in page(memory_runs)
    assert "1 run live, counted while" in page(memory_runs)
    assert "Analyse them" not in page(memory_runs)


def test_balanced_verdict_is_counted_and_costs_nothing(memory_runs: Any, analysis: Analysis, table: StepTable) -> None:
    sound = msgspec.structs.replace(analysis, verdict=Verdict(kind="balanced", summary="No rank stands out."), findings=[])
    memory_runs.put(sound, table)
    memory_runs.cached.add("run-1")
    shown = page(memory_runs)
    assert "0 GPU-h" in shown
    assert "Every run is counted." in shown
