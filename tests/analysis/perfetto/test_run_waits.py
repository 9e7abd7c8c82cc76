"""Collectives of a run in its export: on one clock, with the waits in them and arrows between ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.analysis.perfetto.small_runs import boot, by_step, exported, make_run

from rankscope.analysis.evidence.step_table.chosen_steps import StepRange
from rankscope.runs.paths import rank_dir


@pytest.mark.parametrize("on_cpu", [False, True])
def test_matched_collectives_end_together_for_any_clocks(tmp_path: Path, on_cpu: bool) -> None:
    # given two hosts a quarter of a second apart
    model, export = exported(make_run(tmp_path / "run", on_cpu=on_cpu))
    # then every collective ends at one moment
    collectives = by_step(model.of("collective"))
    assert {step: len(collective) for step, collective in collectives.items()} == {2: 4, 3: 4}
    for collective in collectives.values():
        assert max(item.end for item in collective) - min(item.end for item in collective) <= 1
    # and steps that began together begin together
    for collective in by_step(model.of("step")).values():
        assert max(item.start for item in collective) - min(item.start for item in collective) <= 1
    assert export.clock.offset_us[3] - export.clock.offset_us[0] == pytest.approx(250_000)
    assert export.clock.residual_us == pytest.approx(0, abs=0.01)


def test_ranks_of_one_kernel_share_a_clock_for_any_host_names(tmp_path: Path) -> None:
    # given containers of one kernel with host names of their own, which see a collective end 2 ms apart
    run = make_run(tmp_path / "run", skew_ns={"a": 0, "b": 2_000_000})
    model, export = exported(run)
    assert export.clock.method == "collective_ends"
    assert export.clock.offset_us[3] == pytest.approx(1000)
    boot(run, ["4be2"] * 4)
    model, export = exported(run)
    # then no time is corrected, and the spread is not taken for a disagreement of clocks
    assert export.clock.method == "one_clock"
    assert set(export.clock.offset_us.values()) == {0}
    assert export.clock.residual_us == pytest.approx(2000)
    (note,) = model.of("clock")
    assert "one clock" in note.name
    assert "disagree" not in note.name
    steps = by_step(model.of("step"))[0]
    assert max(step.start for step in steps) - min(step.start for step in steps) == 2_000_000


def test_machines_that_share_a_host_name_have_separate_clocks(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    boot(run, ["4be2", "4be2", "90d1", "90d1"], host="localhost")
    _, export = exported(run)
    assert export.clock.method == "collective_ends"
    assert export.clock.offset_us[3] - export.clock.offset_us[0] == pytest.approx(250_000)


def test_ranks_of_one_kernel_need_no_collective_for_a_common_clock(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", profiled=())
    assert exported(run)[1].clock.method == "none"
    boot(run, ["4be2"] * 4)
    assert exported(run)[1].clock.method == "one_clock"


@pytest.mark.parametrize("on_cpu", [False, True])
def test_waits_are_drawn_with_arrows_from_the_last_rank(tmp_path: Path, on_cpu: bool) -> None:
    model, export = exported(make_run(tmp_path / "run", on_cpu=on_cpu))
    waits = model.of("wait")
    assert {wait.process[:6] for wait in waits} == {"rank 0", "rank 1", "rank 2"}
    assert {wait.name for wait in waits} == {"waiting for rank 3"}
    # inside the collective, as long as the last rank was late
    assert {wait.depth for wait in waits} == {1}
    assert sorted({wait.end - wait.start for wait in waits}) == [3_001_000, 3_002_000, 3_003_000]
    assert (export.arrows, len(model.arrows)) == (6, 6)
    for begin, end in model.arrows:
        assert begin.process.startswith("rank 3")
        assert begin.kind == "collective"
        assert end.process != begin.process
    last = next(wait for wait in model.of("collective") if wait.process.startswith("rank 3"))
    first = next(wait for wait in model.of("collective") if wait.process.startswith("rank 0"))
    assert last.args["last_to_arrive"] == first.args["last_to_arrive"] == 3
    assert (first.args["wait_us"], last.args["wait_us"]) == (pytest.approx(3003), 0)
    assert first.args["bytes"] == 4096
    assert first.args["sequence"] == 9


def test_no_rank_is_drawn_as_last_below_the_residual(tmp_path: Path) -> None:
    # given ranks that arrive within a microsecond of each other, and clocks that agree to no better than a millisecond
    run = make_run(tmp_path / "run", late=-1)
    for rank in range(4):
        for number, file in enumerate(sorted(rank_dir(run, 0, rank).glob("collectives-*.jsonl"))):
            record = json.loads(file.read_text())
            record["end_unix_ns"] += 1_000_000 * ((rank + number) % 2)
            file.write_text(json.dumps(record) + "\n")
    model, export = exported(run)
    assert export.clock.residual_us is not None
    assert export.clock.residual_us >= 1000
    assert model.of("wait") == []
    assert model.arrows == []
    assert export.arrows == 0


def test_steps_without_a_profile_use_the_nearest_fitted_clock(tmp_path: Path) -> None:
    model, export = exported(make_run(tmp_path / "run"), steps=StepRange(5, 6))
    assert model.of("collective") == []
    assert export.clock.fitted_to == "steps 2 to 3"
    assert export.clock.matched == 2
    (steps,) = by_step(model.of("step")).values()
    assert max(item.start for item in steps) - min(item.start for item in steps) <= 1
