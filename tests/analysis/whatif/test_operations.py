"""Counterfactual steps (what-if) from traced operations: the published results, properties, and invalid files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.whatif.simulated_operations import Columns, Took, alike, job, write

from rankscope.analysis.whatif import graph
from rankscope.analysis.whatif.operations_answer import play_operations
from rankscope.analysis.whatif.outcome import Outcome
from rankscope.analysis.whatif.schedule import build_schedule
from rankscope.analysis.whatif.traced_operations import CODES, arrange
from rankscope.analysis.whatif.whatif_of_paths import whatif
from rankscope.analysis.whatif.whatif_result import WhatIf

near: Any = pytest.approx  # compared inside tuples and dictionaries, whose types mypy would reject


def played(columns: Columns) -> Outcome:
    arrays: dict[str, np.ndarray] = {name: np.array(values) for name, values in columns.items() if name != "optype"}
    arrays["kind"] = np.array([CODES[name] for name in columns["optype"]])
    arranged = arrange(arrays)
    return play_operations(arranged, build_schedule(arranged))


def slow(stage: int, replica: int, factor: float = 3.0) -> Took:
    """Return durations with which one rank computes slowly."""
    return lambda op, s, r, step: (
        alike(op, s, r, step) * (factor if (s, r) == (stage, replica) and op.endswith("compute") else 1.0)
    )


GOLDEN = ("AR", "ST")


@pytest.fixture(scope="module", params=GOLDEN)
def golden(request: pytest.FixtureRequest, shared_data: Path) -> tuple[WhatIf, dict[str, Any], dict[str, float]]:
    """Our answer, the authors' answer, and the content of their M_W and M_S files in one dictionary."""
    folder, name = shared_data / "whatif", request.param
    published = json.loads(gzip.decompress((folder / f"result-{name}.json.gz").read_bytes()))
    extra = {
        f"{kind}.{key}": value
        for kind in ("ms", "mw")
        for key, value in json.loads((folder / f"{kind}-{name}.json").read_text()).items()
    }
    return whatif([folder / f"trace-{name}.parquet"], per_step=True), published, extra


def four_digits(value: float) -> Any:
    return near(value, rel=2e-6, abs=5e-6)


def test_slowdowns_equal_the_published_ones(golden: tuple[WhatIf, dict[str, Any], dict[str, float]]) -> None:
    ours, theirs, _ = golden
    assert ours.slowdown == four_digits(theirs["blocking_slowdown"])
    assert ours.discrepancy == four_digits(theirs["launch_slowdown"])
    assert {str(row.dp_rank): row.slowdown for row in ours.by_dp_rank} == four_digits(theirs["blocking_decompose_by_dp_rank"])
    assert {str(row.stage): row.slowdown for row in ours.by_stage} == four_digits(theirs["blocking_decompose_by_stage"])
    assert {row.op: row.slowdown for row in ours.by_op} == four_digits(theirs["blocking_decompose_by_optype"])


def test_slowdowns_of_each_step_equal_the_published_ones(golden: tuple[WhatIf, dict[str, Any], dict[str, float]]) -> None:
    ours, theirs, _ = golden
    assert ours.steps is not None
    for field, own in (("step_t_base", "measured"), ("step_t_nodelay", "step"), ("step_t_noblk", "ideal")):
        assert {str(row.step): getattr(row, f"{own}_seconds") for row in ours.steps} == four_digits(theirs[field])
    assert {str(row.step): row.slowdown for row in ours.steps} == four_digits(theirs["blocking_step_slowdown"])
    per_step = {
        "dp_rank": {str(row.dp_rank): row.slowdown_per_step for row in ours.by_dp_rank},
        "stage": {str(row.stage): row.slowdown_per_step for row in ours.by_stage},
        "optype": {row.op: row.slowdown_per_step for row in ours.by_op},
    }
    for kind, rows in per_step.items():
        for at, step in enumerate(ours.steps):
            expected = theirs[f"blocking_decompose_by_{kind}_per_step"][str(step.step)]
            assert {name: values[at] for name, values in rows.items() if values} == four_digits(expected)


def test_m_worker_and_m_stage_equal_the_published_ones(golden: tuple[WhatIf, dict[str, Any], dict[str, float]]) -> None:
    ours, _, theirs = golden
    assert (ours.m_worker, ours.m_stage) == (four_digits(theirs["mw.Mw"]), four_digits(theirs["ms.Ms"]))
    assert (ours.step_seconds, ours.ideal_step_seconds) == (four_digits(theirs["mw.tori"]), four_digits(theirs["mw.tideal"]))
    (slowest,) = [row for row in ours.by_rank if row.rank in ours.slowest_ranks]
    assert slowest.without_step_seconds == four_digits(theirs["mw.trem"])
    assert slowest.slowdown == four_digits(theirs["mw.tadd"] / theirs["mw.tideal"])
    last = max(ours.by_stage, key=lambda row: row.stage)
    assert last.without_step_seconds == four_digits(theirs["ms.trem"])
    assert last.slowdown == four_digits(theirs["ms.tadd"] / theirs["ms.tideal"])


def test_hours_include_all_gpus_of_the_job(shared_data: Path) -> None:
    answer = whatif([shared_data / "whatif" / "trace-AR.parquet"], price_per_gpu_hour=2.0, currency="EUR")
    assert answer.saved_seconds is not None
    assert answer.source.world_size == 64
    assert answer.gpu_hours_lost == near(answer.saved_seconds * 44 * 64 / 3600)
    assert answer.cost is not None
    assert (answer.cost.amount, answer.cost.currency) == (near(2 * answer.saved_seconds * 44 * 64 / 3600), "EUR")
    assert (answer.by_rank[0].rank, answer.slowest_ranks) == (0, [0])


def test_equal_ranks_lose_exactly_nothing() -> None:
    outcome = played(job(alike, stages=3, replicas=2, micro_batches=4))
    assert outcome.actual.tolist() == outcome.ideal.tolist() == outcome.measured.tolist()
    for part in (*outcome.ranks, *outcome.stages, *outcome.ops, *outcome.replicas):
        assert part.only.tolist() == part.without.tolist() == outcome.ideal.tolist()


def test_single_rank_has_no_peer_to_wait_for(tmp_path: Path) -> None:
    answer = whatif([write(tmp_path, job(alike, stages=1, replicas=1))])
    assert (answer.status, answer.slowdown, answer.m_worker, answer.m_stage) == ("ok", 1.0, None, None)
    assert (answer.by_stage, answer.by_dp_rank) == ([], [])


@pytest.mark.parametrize(("stage", "replica"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_slow_rank_explains_the_loss(tmp_path: Path, stage: int, replica: int) -> None:
    answer = whatif([write(tmp_path, job(slow(stage, replica)))])
    rank = replica * 2 + stage
    assert (answer.by_rank[0].rank, answer.slowest_ranks) == (rank, [rank])
    assert (answer.by_rank[0].stage, answer.by_rank[0].dp_rank) == (stage, replica)
    assert answer.m_worker is not None
    assert answer.m_worker > 0.9
    assert answer.by_op[0].op == "backward-compute"
    assert f"ixing rank {rank} alone" in answer.summary or "last pipeline stage" in answer.summary


durations = st.dictionaries(
    st.tuples(
        st.sampled_from(["forward-compute", "backward-compute", "grads-reduce-scatter"]), st.integers(0, 1), st.integers(0, 2)
    ),
    st.integers(1, 20),
)


def drawn(table: dict[tuple[str, int, int], int], scale: float = 1.0, order: tuple[int, ...] = (0, 1, 2)) -> Took:
    # A transfer takes one time on all its ranks, as it does in a trace without skew of clocks.
    def took(op: str, stage: int, replica: int, step: int) -> float:
        replica = order[replica] if op.endswith("compute") else 0
        return scale * table.get((op, stage, replica), alike(op, stage, replica, step))

    return took


def means(outcome: Outcome) -> dict[str, tuple[float, float]]:
    return {
        json.dumps(part.key, sort_keys=True): (float(part.only.mean()), float(part.without.mean()))
        for part in (*outcome.ranks, *outcome.stages, *outcome.ops, *outcome.replicas)
    }


@given(durations, st.integers(2, 8))
def test_scaling_durations_scales_times(table: dict[tuple[str, int, int], int], factor: int) -> None:
    plain, scaled = (played(job(drawn(table, scale), replicas=3)) for scale in (1.0, factor))
    assert scaled.actual == near(plain.actual * factor)
    assert scaled.ideal == near(plain.ideal * factor)
    expected = {key: (near(only * factor), near(without * factor)) for key, (only, without) in means(plain).items()}
    assert means(scaled) == expected


@given(durations, st.permutations(range(3)))
def test_permuting_replicas_permutes_results(table: dict[tuple[str, int, int], int], order: list[int]) -> None:
    plain, permuted = (played(job(drawn(table, order=tuple(item)), replicas=3)) for item in (range(3), order))
    assert permuted.actual == near(plain.actual)
    assert permuted.ideal == near(plain.ideal)
    ours = {part.key["dp_rank"]: part for part in permuted.replicas}
    theirs = {part.key["dp_rank"]: part for part in plain.replicas}
    for replica in range(3):
        assert ours[replica].only == near(theirs[order[replica]].only)
        assert ours[replica].without == near(theirs[order[replica]].without)


@given(durations)
def test_replay_reproduces_the_measured_time(table: dict[tuple[str, int, int], int]) -> None:
    outcome = played(job(drawn(table), replicas=3))
    assert outcome.actual == near(outcome.measured)


@given(st.randoms())
@settings(max_examples=10)
def test_row_order_does_not_matter(random: Any) -> None:
    columns = job(slow(1, 0))
    order = list(range(len(columns["step"])))
    random.shuffle(order)
    shuffled = {name: [values[row] for row in order] for name, values in columns.items()}
    assert means(played(shuffled)) == means(played(columns))


@pytest.mark.parametrize("limit", ["_CELLS_AT_ONCE", "_MASKED_AT_ONCE"])
def test_number_of_scenarios_replayed_at_once_does_not_matter(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    # given a job whose ranks all differ
    columns = job(
        lambda op, s, r, step: alike(op, s, r, step) * (1 + s + 3 * r + 7 * step), stages=3, replicas=2, micro_batches=4
    )
    at_once = played(columns)
    # when a few, then one after the other are played
    for cells in (20, 1):
        monkeypatch.setattr(graph, limit, cells)
        by_turns = played(columns)
        # then
        assert means(by_turns) == means(at_once)
        assert by_turns.without_slowest.tolist() == at_once.without_slowest.tolist()


def test_step_without_an_operation_is_left_out(tmp_path: Path) -> None:
    columns = job(slow(1, 0), steps=3)
    gone = next(row for row in range(len(columns["step"])) if (columns["step"][row], columns["dp_rank"][row]) == (1, 1))
    answer = whatif([write(tmp_path, {name: values[:gone] + values[gone + 1 :] for name, values in columns.items()})])
    assert (answer.source.steps, answer.source.steps_left_out) == (2, 1)
    assert any("1 of 3 steps left out" in warning for warning in answer.source.warnings)
    of_whole_steps = whatif([write(tmp_path, job(slow(1, 0), steps=2))])
    assert (answer.slowdown, answer.m_worker) == (of_whole_steps.slowdown, of_whole_steps.m_worker)


def test_hours_without_metadata_cover_the_ranks_in_the_trace(tmp_path: Path) -> None:
    path = write(tmp_path, job(slow(1, 0)))
    alone = whatif([path])
    assert alone.source.world_size is None
    assert any("no metadata" in warning for warning in alone.source.warnings)
    (tmp_path / "meta-x.yaml").write_text("# a comment\ntrial_name: 'x'\nworld_size: 32\n")
    answer = whatif([path])
    assert (answer.source.world_size, answer.source.name, answer.source.warnings) == (32, "x", [])
    assert answer.gpu_hours_lost == near((alone.gpu_hours_lost or 0) * 32 / 4)


def test_answer_round_trips_through_its_schema(tmp_path: Path) -> None:
    answer = whatif([write(tmp_path, job(slow(1, 0)))])
    decoded = msgspec.json.decode(msgspec.json.encode(answer), type=WhatIf)
    assert decoded == answer
