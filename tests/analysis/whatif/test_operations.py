"""Counterfactual steps (what-if) from traced operations: the published results, properties, and invalid files."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet as pq

from rankscope.analysis.whatif import graph, operations, operations_file
from rankscope.analysis.whatif.operations import CODES, arrange
from rankscope.analysis.whatif.operations_answer import play_operations
from rankscope.analysis.whatif.outcome import Outcome
from rankscope.analysis.whatif.schedule import build_schedule
from rankscope.analysis.whatif.whatif_of_paths import whatif
from rankscope.analysis.whatif.whatif_result import WhatIf
from rankscope.base.errors import InputError

near: Any = pytest.approx  # compared inside tuples and dictionaries, whose types mypy would reject

Columns = dict[str, list[Any]]
Took = Callable[[str, int, int, int], float]
"""(operation, stage, replica, step) to seconds."""


def job(took: Took, *, stages: int = 2, replicas: int = 2, steps: int = 2, micro_batches: int = 3) -> Columns:
    """Return rows of the sample format for a job that runs all forwards, then all backwards, in whole seconds."""
    rows: list[dict[str, Any]] = []
    for step in range(steps):
        clip_at = 0.0
        tails: list[tuple[int, int, float]] = []
        reduced: dict[int, float] = {}
        for replica in range(replicas):
            ends = _pipeline(rows, took, (stages, micro_batches), (step, replica))
            for stage in range(stages):
                reduced[stage] = max(reduced.get(stage, 0.0), ends[stage])
                tails.append((stage, replica, ends[stage]))
        for stage, replica, end in tails:
            result = reduced[stage] + took("grads-reduce-scatter", stage, replica, step)
            rows.append(_row("grads-reduce-scatter", 0, stage, (step, replica, stages), (end, result)))
            clip_at = max(clip_at, result)
        for stage, replica, _ in tails:
            begin = reduced[stage] + took("grads-reduce-scatter", stage, replica, step)
            result = clip_at + took("optimizer-clip-main-grad", stage, replica, step)
            rows.append(_row("optimizer-clip-main-grad", 0, stage, (step, replica, stages), (begin, result)))
            last = result + took("optimizer", stage, replica, step)
            rows.append(_row("optimizer", 0, stage, (step, replica, stages), (result, last)))
    return {name: [row[name] for row in rows] for name in rows[0]}


def _row(op: str, seq: int, stage: int, where: tuple[int, int, int], span: tuple[float, float]) -> dict[str, Any]:
    step, replica, stages = where
    start, end = span
    return {
        "dp_rank": replica,
        "stage": stage,
        "rank": replica * stages + stage,
        "step": step,
        "optype": op,
        "start_ts": start,
        "duration": end - start,
        "seq_id": seq,
    }


def _pipeline(rows: list[dict[str, Any]], took: Took, shape: tuple[int, int], place: tuple[int, int]) -> list[float]:
    """Append the forwards and backwards of one replica in one step; return the end of each stage."""
    stages, micro_batches = shape
    step, replica = place
    where = (step, replica, stages)
    free = [0.0] * stages
    ahead = [0.0] * stages  # end of the forward before the last one, which the first backward transfers wait for
    for way, order in (("forward", range(stages)), ("backward", range(stages - 1, -1, -1))):
        sent, received, computed = ([0.0] * stages for _ in range(3))
        for number in range(micro_batches):
            for at, stage in enumerate(order):
                if at:
                    sender = order[at - 1]
                    send = max(computed[sender], sent[sender])
                    receive = max(computed[stage], received[stage], ahead[stage] if way == "backward" else 0.0)
                    moved = max(send, receive) + took(f"{way}-send", stage, replica, step)
                    rows.append(_row(f"{way}-send", number, sender, where, (send, moved)))
                    rows.append(_row(f"{way}-recv", number, stage, where, (receive, moved)))
                    sent[sender] = received[stage] = moved
                begin = max(free[stage], received[stage])
                free[stage] = computed[stage] = begin + took(f"{way}-compute", stage, replica, step)
                rows.append(_row(f"{way}-compute", number, stage, where, (begin, free[stage])))
                if way == "forward" and number == micro_batches - 2:
                    ahead[stage] = free[stage]
    return free


def write(folder: Path, columns: Columns, name: str = "trace-x.parquet") -> Path:
    path = folder / name
    pq.write_table(pa.table(columns), path)
    return path


def played(columns: Columns) -> Outcome:
    arrays: dict[str, np.ndarray] = {name: np.array(values) for name, values in columns.items() if name != "optype"}
    arrays["kind"] = np.array([CODES[name] for name in columns["optype"]])
    arranged = arrange(arrays)
    return play_operations(arranged, build_schedule(arranged))


def alike(op: str, _stage: int, _replica: int, _step: int) -> float:
    return {"forward-compute": 2.0, "backward-compute": 4.0, "optimizer": 1.0}.get(op, 1.0)


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


def test_slowdowns_are_those_the_authors_published(golden: tuple[WhatIf, dict[str, Any], dict[str, float]]) -> None:
    ours, theirs, _ = golden
    assert ours.slowdown == four_digits(theirs["blocking_slowdown"])
    assert ours.discrepancy == four_digits(theirs["launch_slowdown"])
    assert {str(row.dp_rank): row.slowdown for row in ours.by_dp_rank} == four_digits(theirs["blocking_decompose_by_dp_rank"])
    assert {str(row.stage): row.slowdown for row in ours.by_stage} == four_digits(theirs["blocking_decompose_by_stage"])
    assert {row.op: row.slowdown for row in ours.by_op} == four_digits(theirs["blocking_decompose_by_optype"])


def test_so_are_those_of_each_step(golden: tuple[WhatIf, dict[str, Any], dict[str, float]]) -> None:
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


def test_so_are_m_worker_and_m_stage(golden: tuple[WhatIf, dict[str, Any], dict[str, float]]) -> None:
    ours, _, theirs = golden
    assert (ours.m_worker, ours.m_stage) == (four_digits(theirs["mw.Mw"]), four_digits(theirs["ms.Ms"]))
    assert (ours.step_seconds, ours.ideal_step_seconds) == (four_digits(theirs["mw.tori"]), four_digits(theirs["mw.tideal"]))
    (slowest,) = [row for row in ours.by_rank if row.rank in ours.slowest_ranks]
    assert slowest.without_step_seconds == four_digits(theirs["mw.trem"])
    assert slowest.slowdown == four_digits(theirs["mw.tadd"] / theirs["mw.tideal"])
    last = max(ours.by_stage, key=lambda row: row.stage)
    assert last.without_step_seconds == four_digits(theirs["ms.trem"])
    assert last.slowdown == four_digits(theirs["ms.tadd"] / theirs["ms.tideal"])


def test_hours_are_those_of_all_gpus_of_the_job(shared_data: Path) -> None:
    answer = whatif([shared_data / "whatif" / "trace-AR.parquet"], price_per_gpu_hour=2.0, currency="EUR")
    assert answer.saved_seconds is not None
    assert answer.source.world_size == 64
    assert answer.gpu_hours_lost == near(answer.saved_seconds * 44 * 64 / 3600)
    assert answer.cost is not None
    assert (answer.cost.amount, answer.cost.currency) == (near(2 * answer.saved_seconds * 44 * 64 / 3600), "EUR")
    assert (answer.by_rank[0].rank, answer.slowest_ranks) == (0, [0])


def test_ranks_that_are_alike_lose_exactly_nothing() -> None:
    outcome = played(job(alike, stages=3, replicas=2, micro_batches=4))
    assert outcome.actual.tolist() == outcome.ideal.tolist() == outcome.measured.tolist()
    for part in (*outcome.ranks, *outcome.stages, *outcome.ops, *outcome.replicas):
        assert part.only.tolist() == part.without.tolist() == outcome.ideal.tolist()


def test_one_rank_alone_has_nobody_to_wait_for(tmp_path: Path) -> None:
    answer = whatif([write(tmp_path, job(alike, stages=1, replicas=1))])
    assert (answer.status, answer.slowdown, answer.m_worker, answer.m_stage) == ("ok", 1.0, None, None)
    assert (answer.by_stage, answer.by_dp_rank) == ([], [])


@pytest.mark.parametrize(("stage", "replica"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_the_slow_rank_explains_the_loss(tmp_path: Path, stage: int, replica: int) -> None:
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
def test_the_graph_plays_the_measured_time(table: dict[tuple[str, int, int], int]) -> None:
    outcome = played(job(drawn(table), replicas=3))
    assert outcome.actual == near(outcome.measured)


@given(st.randoms())
@settings(max_examples=10)
def test_the_order_of_the_rows_does_not_matter(random: Any) -> None:
    columns = job(slow(1, 0))
    order = list(range(len(columns["step"])))
    random.shuffle(order)
    shuffled = {name: [values[row] for row in order] for name, values in columns.items()}
    assert means(played(shuffled)) == means(played(columns))


@pytest.mark.parametrize("limit", ["_CELLS_AT_ONCE", "_MASKED_AT_ONCE"])
def test_how_many_scenarios_are_played_at_once_does_not_matter(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
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


def test_a_step_that_lacks_an_operation_is_left_out(tmp_path: Path) -> None:
    columns = job(slow(1, 0), steps=3)
    gone = next(row for row in range(len(columns["step"])) if (columns["step"][row], columns["dp_rank"][row]) == (1, 1))
    answer = whatif([write(tmp_path, {name: values[:gone] + values[gone + 1 :] for name, values in columns.items()})])
    assert (answer.source.steps, answer.source.steps_left_out) == (2, 1)
    assert any("1 of 3 steps left out" in warning for warning in answer.source.warnings)
    of_whole_steps = whatif([write(tmp_path, job(slow(1, 0), steps=2))])
    assert (answer.slowdown, answer.m_worker) == (of_whole_steps.slowdown, of_whole_steps.m_worker)


def test_without_metadata_hours_are_of_the_ranks_in_the_trace(tmp_path: Path) -> None:
    path = write(tmp_path, job(slow(1, 0)))
    alone = whatif([path])
    assert alone.source.world_size is None
    assert any("no metadata" in warning for warning in alone.source.warnings)
    (tmp_path / "meta-x.yaml").write_text("# a comment\ntrial_name: 'x'\nworld_size: 32\n")
    answer = whatif([path])
    assert (answer.source.world_size, answer.source.name, answer.source.warnings) == (32, "x", [])
    assert answer.gpu_hours_lost == near((alone.gpu_hours_lost or 0) * 32 / 4)


def without(columns: Columns, name: str) -> Columns:
    return {key: values for key, values in columns.items() if key != name}


def replaced(columns: Columns, name: str, row: int, value: Any) -> Columns:
    values = list(columns[name])
    values[row] = value
    return {**columns, name: values}


GOOD = job(alike)
WRONG: dict[str, tuple[Columns, str]] = {
    "no column": (without(GOOD, "duration"), "there is no column duration"),
    "no columns": ({"a": [1]}, "there is no column dp_rank, stage, rank, step, seq_id, optype, start_ts, duration"),
    "no rows": ({name: pa.array([], pa.array(values).type) for name, values in GOOD.items()}, "no operations in it"),
    "nan": (replaced(GOOD, "duration", 7, float("nan")), "row 7: duration is nan"),
    "negative": (replaced(GOOD, "duration", 7, -1.0), "row 7: duration is -1 seconds, below 0"),
    "infinite": (replaced(GOOD, "start_ts", 3, float("inf")), "row 3: start_ts is inf"),
    "a year": (replaced(GOOD, "duration", 7, 1e9), "row 7: duration is 1e+09 seconds, more than a year"),
    "null": (replaced(GOOD, "stage", 2, None), "row 2: stage is missing"),
    "null name": (replaced(GOOD, "optype", 2, None), "row 2: optype is missing"),
    "unknown operation": (replaced(GOOD, "optype", 4, "evil\x1b[2J"), "row 4: unknown operation 'evil\\x1b[2J'"),
    "hostile stage": (replaced(GOOD, "stage", 5, 2**40), "row 5: stage is 1099511627776, which no job has"),
    "hostile step": (replaced(GOOD, "step", 5, -(2**63)), "row 5: step is -9223372036854775808, which no job has"),
    "text": (replaced(GOOD, "step", 0, 0) | {"step": ["a"] * len(GOOD["step"])}, "column step is string, not whole numbers"),
    "fractions": ({**GOOD, "stage": [0.5] * len(GOOD["step"])}, "column stage is double, not whole numbers"),
    "numbers for names": ({**GOOD, "optype": GOOD["seq_id"]}, "column optype is int64, not names"),
    "twice": ({name: values + values[:1] for name, values in GOOD.items()}, "the same operation twice in a step"),
    "a stage without anything": ({**GOOD, "stage": [3 * index for index in GOOD["stage"]]}, "but nothing of stage 1"),
    "two of one rank": ({**GOOD, "rank": GOOD["stage"]}, "needs a rank of its own"),
    "a rank that moves": (replaced(GOOD, "rank", 0, 99), "changes its rank"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_refused_with_the_place_and_what_is_wrong(tmp_path: Path, name: str) -> None:
    columns, text = WRONG[name]
    path = write(tmp_path, columns)
    with pytest.raises(InputError, match=re.escape(text)) as caught:
        whatif([path])
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def keep(columns: Columns, chosen: Callable[[dict[str, Any]], bool]) -> Columns:
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return {name: [row[name] for row in rows if chosen(row)] for name in columns}


def test_a_pipeline_without_its_transfers_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, keep(GOOD, lambda row: row["optype"] != "forward-recv" or row["seq_id"] != 1))
    with pytest.raises(InputError, match="stage 0 has 3 forward-send, but stage 1 2 forward-recv"):
        whatif([path])


def test_an_order_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    # given a first stage whose first backward starts before its first forward, on whose result it depends
    columns = {name: list(values) for name, values in GOOD.items()}
    for row, (op, stage, seq) in enumerate(zip(columns["optype"], columns["stage"], columns["seq_id"], strict=True)):
        if (op, stage, seq) == ("backward-compute", 0, 0):
            columns["start_ts"][row] = -5.0
    with pytest.raises(InputError, match=r"operations wait for each other in a circle: .*backward-compute 0 of stage 0"):
        whatif([write(tmp_path, columns)])


def test_no_step_in_common_is_refused(tmp_path: Path) -> None:
    # given replica 1 without an optimizer in the only step
    columns = keep(job(alike, steps=1), lambda row: (row["dp_rank"], row["optype"]) != (1, "optimizer"))
    columns = keep(columns, lambda row: (row["dp_rank"], row["optype"]) != (0, "optimizer-clip-main-grad") or row["stage"])
    with pytest.raises(InputError, match="in no step have all replicas the same operations"):
        whatif([write(tmp_path, columns)])


@pytest.mark.parametrize("data", [b"", b"PAR1", b"hello, this is no parquet", b"PAR1" + b"\xff" * 40 + b"PAR1"])
def test_what_is_no_parquet_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "trace-x.parquet"
    path.write_bytes(data)
    with pytest.raises(InputError, match=re.escape(str(path))):
        whatif([path])


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    content = path.read_bytes()
    for size in range(0, len(content), max(1, len(content) // 40)):
        path.write_bytes(content[:size])
        with pytest.raises(InputError):
            whatif([path])


def test_too_many_operations_are_refused_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations_file, "MAX_OPERATIONS", 10)
    with pytest.raises(InputError, match="at most 10 are read"):
        whatif([write(tmp_path, GOOD)])


def test_a_step_of_absurdly_many_operations_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "MAX_NODES", 10)
    with pytest.raises(InputError, match="a step of 30 operations on one replica; at most 10"):
        whatif([write(tmp_path, GOOD)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("world_size: many\n", "world_size is 'many'"),
        ("world_size: 0", "world_size is '0'"),
        ("- a list\n", "line 1"),
        ("\xff", None),
    ],
)
def test_metadata_that_make_no_sense_are_refused(tmp_path: Path, text: str, message: str | None) -> None:
    path = write(tmp_path, GOOD)
    (tmp_path / "meta-x.yaml").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=message or "UTF-8") as caught:
        whatif([path])
    assert "meta-x.yaml" in str(caught.value)


def test_two_files_at_once_are_refused(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "trace-a.parquet")
    write(tmp_path, GOOD, "trace-b.parquet")
    with pytest.raises(InputError, match=re.escape("trace-b.parquet: a second file of operations beside")):
        whatif([tmp_path])
    (tmp_path / "trace-b.parquet").unlink()
    assert whatif([tmp_path]).slowdown == 1.0


def test_metadata_of_another_job_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    (tmp_path / "meta-x.yaml").write_text("world_size: 3\n")
    with pytest.raises(InputError, match="the job has 3 GPUs, but there are 4 ranks in it"):
        whatif([path])


def test_nothing_else_goes_with_a_file_of_operations(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    with pytest.raises(InputError, match="cannot be looked at together with"):
        whatif([path, tmp_path / "rank-0.json"])
    with pytest.raises(InputError, match="cannot be looked at together with"):
        whatif([path, path])
    with pytest.raises(InputError, match="nothing to look at"):
        whatif([])


def test_the_answer_has_the_fields_of_its_schema(tmp_path: Path) -> None:
    answer = whatif([write(tmp_path, job(slow(1, 0)))])
    decoded = msgspec.json.decode(msgspec.json.encode(answer), type=WhatIf)
    assert decoded == answer
