"""A link far below its rate is a finding where it costs time, and is charged to no rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.analysis.breakdowns import breakdown

from rankscope.analysis.collectives.traffic.links import parse_link
from rankscope.analysis.engine import analyze
from rankscope.analysis.report.terminal import render_text
from rankscope.analysis.result.analysis import Analysis
from rankscope.runs.paths import rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import CollectiveRecord
from rankscope.runs.small_files import write_record

SIZE = 1 << 30
STEPS = 3
WINDOW_US = 100_000.0
Slowed = Callable[..., Path]


def all_reduce(step: int, start_ns: int, transfer_us: float, size: int | None) -> CollectiveRecord:
    return CollectiveRecord(
        step=step,
        group="dp",
        group_ranks=[0, 1, 2, 3],
        group_size=4,
        index=0,
        op="all_reduce",
        dtype="Float",
        bytes=size,
        enqueue_unix_ns=start_ns,
        start_unix_ns=start_ns,
        end_unix_ns=start_ns + round(transfer_us * 1000),
        stream=7,
    )


@pytest.fixture
def slowed(synthetic: Callable[..., object], add_windows: Callable[..., None], tmp_path: Path) -> Slowed:
    """Function ``slowed(bus_gb_s)``: writes a run of four H100s on one host whose all-reduce has that bus bandwidth."""

    def make(
        bus_gb_s: float,
        *,
        hidden: bool = False,
        size: int | None = SIZE,
        gpu: str | None = "NVIDIA H100 80GB HBM3",
        dimension: str = "dp",
        signals: bool = True,
    ) -> Path:
        transfer = SIZE * 1.5 / bus_gb_s / 1000
        seen = 0.0 if hidden else min(transfer, 0.9 * WINDOW_US) / WINDOW_US
        run: Path = synthetic(
            steps=20,
            signals=signals,
            # The transfer has the same share of the step records (100 ms of own time plus blocked time) as of the windows.
            transfer_us=100_000 * seen / (1 - seen),
            coordinates={rank: {dimension: rank} for rank in range(4)},
        ).write()  # type: ignore[attr-defined]
        reader = RunReader(run)
        for rank in range(4):
            info = reader.rank(0, rank)
            assert info is not None
            write_record(rank_dir(run, 0, rank) / "rank.json", msgspec.structs.replace(info, host="n0", gpu_name=gpu))
            starts = {10 + step: 10**18 + step * 10**8 for step in range(STEPS)}
            exposed = 0.0 if hidden else min(transfer, WINDOW_US)
            rows = [
                breakdown(step, compute=WINDOW_US - exposed, exposed=exposed, start_unix_ns=at) for step, at in starts.items()
            ]
            add_windows(run, rank, rows, [all_reduce(step, at, transfer, size) for step, at in starts.items()])
        return run

    return make


def evidence(analysis: Analysis) -> dict[str, float]:
    ones = [finding for finding in analysis.findings if finding.cause == "communication"]
    return {row.name: row.value for finding in ones for row in finding.evidence}


def test_slow_link_explains_a_communication_bound_step(slowed: Slowed) -> None:
    analysis = analyze([slowed(40.0)])
    (row,) = analysis.collectives.by_op
    assert (row.op, row.group, row.count, row.matched, row.link, row.bound_by) == (
        "all_reduce",
        "dp",
        3,
        3,
        "nvlink4",
        "bandwidth",
    )
    assert row.bus_gb_s == pytest.approx(40, rel=1e-3)
    assert row.share == pytest.approx(40 / 450, rel=1e-3)
    assert evidence(analysis) == {"bus_bandwidth": pytest.approx(40, rel=1e-3), "expected_bandwidth": 450}
    verdict = analysis.verdict
    assert (verdict.kind, verdict.cause, verdict.explained_by) == ("communication_bound", "communication", "link")
    assert "nccl-tests" in verdict.next[0]
    text = render_text(analysis, detail=True)
    assert "moves 40 GB/s over nvlink4, which should give 450" in " ".join(text.split())
    # 40 ms of the step's 100 are transfer; a healthy link would need a ninth of that.
    assert "up to 36% of the profiled time is lost" in " ".join(text.split())
    assert "9%" in next(line for line in text.splitlines() if line.startswith("all_reduce dp"))


@pytest.mark.parametrize(
    "options",
    [
        {"bus_gb_s": 300.0},  # two thirds of the bare rate is normal
        {"bus_gb_s": 40.0, "hidden": True},  # communication hidden by compute costs nothing
        {"bus_gb_s": 40.0, "size": None},  # without a size there is no bandwidth
        {"bus_gb_s": 40.0, "gpu": "NVIDIA H100 PCIe"},  # may or may not have a bridge
        {"bus_gb_s": 40.0, "gpu": None},
    ],
)
def test_fast_hidden_or_unknown_transfers_accuse_no_link(slowed: Slowed, options: dict[str, object]) -> None:
    analysis = analyze([slowed(**options)])
    assert evidence(analysis) == {}
    assert analysis.verdict.explained_by is None


def test_stated_link_is_compared_with(slowed: Slowed) -> None:
    run = slowed(40.0, gpu=None)
    assert analyze([run], links=[parse_link("nvlink3")]).verdict.explained_by == "link"
    assert analyze([run], links=[parse_link("pcie5")]).verdict.explained_by is None


def test_cards_slower_than_their_slots_are_no_slow_link(slowed: Slowed) -> None:
    analysis = analyze([slowed(8.0, gpu="NVIDIA L40S")])
    (row,) = analysis.collectives.by_op
    assert (row.link, row.expected_gb_s, row.share) == ("pcie4", None, None)
    assert evidence(analysis) == {}
    # Unless the user states that each has a way of its own
    assert evidence(analyze([slowed(8.0, gpu="NVIDIA L40S")], links=[parse_link("pcie4")]))["expected_bandwidth"] == 31.51


@pytest.mark.parametrize(("dimension", "advised"), [("dp", True), ("tp", False)])
def test_gradient_advice_needs_exposed_gradients(slowed: Slowed, dimension: str, *, advised: bool) -> None:
    names = {advice_item.name for advice_item in analyze([slowed(40.0, dimension=dimension, signals=False)]).advice}
    assert ({"overlap", "gradient_accumulation"} <= names) is advised
    assert advised or not names & {"overlap", "gradient_accumulation", "shard", "keep_parameters", "prefetch_shards"}
