"""Runs that are damaged, crashed, silent or too short: the report and the next action it suggests."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.analysis.conftest import plan_for
from tests.step_files import load, save

from rankscope.analysis.captured import analyze_captured
from rankscope.analysis.engine import analyze
from rankscope.analysis.inference.profiled_steps import ENOUGH_STEPS
from rankscope.analysis.report.terminal import render_text
from rankscope.analysis.verdict.endings import endings
from rankscope.runs.paths import activity_file, rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import AttemptInfo, EndReason, RankActivity, RankInfo
from rankscope.runs.small_files import write_record

Synthetic = Callable[..., Any]


@pytest.mark.parametrize("size", [2_000_000_000, 10**30])
def test_absurd_world_size_costs_no_memory(synthetic: Synthetic, size: int) -> None:
    path = synthetic(plan=plan_for(2, us=60_000)).write()
    write_record(path / "attempts" / "000" / "attempt.json", AttemptInfo(attempt=0, start_unix_ns=1, world_size=size))
    analysis = analyze([path])
    assert analysis.verdict.rank == 2
    assert f"no records of ranks 4, 5, 6, 7, 8, 9, 10, 11 and {size - 12:,} more" in analysis.source.warnings


@pytest.mark.parametrize("size", [-3, 0, 1])
def test_world_size_below_the_recorded_ranks_is_ignored(synthetic: Synthetic, size: int) -> None:
    path = synthetic(plan=plan_for(2, us=60_000)).write()
    write_record(path / "attempts" / "000" / "attempt.json", AttemptInfo(attempt=0, start_unix_ns=1, world_size=size))
    analysis = analyze([path])
    assert (analysis.verdict.rank, analysis.source.world_size, analysis.source.coverage) == (2, 4, 1)


def test_damaged_identity_files_are_named(synthetic: Synthetic) -> None:
    path = synthetic(plan=plan_for(2, us=60_000)).write()
    (path / "attempts" / "000" / "attempt.json").write_text("{")
    (rank_dir(path, 0, 3) / "rank.json").write_text("[]")
    analysis = analyze([path])
    assert analysis.verdict.rank == 2
    assert "damaged, so left out: attempts/000/attempt.json, attempts/000/ranks/00003/rank.json" in analysis.source.warnings


def test_one_rank_of_an_unknown_world_size_is_not_the_whole_job(synthetic: Synthetic) -> None:
    path = synthetic(ranks=1).write()
    (path / "attempts" / "000" / "attempt.json").unlink()
    (rank_dir(path, 0, 0) / "rank.json").unlink()
    assert "unknown size" in analyze([path]).verdict.summary


def test_advice_after_a_crash_begins_with_the_error_output(synthetic: Synthetic) -> None:
    calm = analyze([synthetic(lost_after={3: 25}, end_reasons={3: "crash"}).write()])
    assert "error output of rank 3 on n1" in calm.verdict.next[0]
    assert calm.verdict.failure == "rank 3 crashed before the end of training"
    assert render_text(calm).startswith("JOB FAILED: rank 3 crashed")


def test_crash_comes_before_the_straggler_in_the_advice(synthetic: Synthetic) -> None:
    run = synthetic(plan=plan_for(2, us=60_000), lost_after={3: 25}, end_reasons={3: "crash"}).write()
    verdict = analyze([run]).verdict
    assert "error output of rank 3" in verdict.next[0]
    assert "rank 2" in verdict.next[1]


@pytest.mark.parametrize("options", [{"steps": 3}, {"steps": 40, "signals": False}])
def test_job_that_failed_early_is_not_advised_to_train_longer(synthetic: Synthetic, options: dict[str, Any]) -> None:
    verdict = analyze([synthetic(**options, end_reasons={1: "crash"}).write()]).verdict
    assert verdict.kind == "insufficient_data"
    assert "error output of rank 1" in verdict.next[0]
    assert f"failed after {options['steps']} steps" in verdict.next[1]
    assert "more" not in verdict.next[1]


def began_ago(run: Path, seconds: float, *, goes_on: bool) -> None:
    """Move all times of a synthetic run so that it began ``seconds`` ago; with ``goes_on`` its ranks have not ended."""
    moved_ns = time.time_ns() - int(seconds * 1e9) - 10**18
    for path in (run / "attempts").rglob("*.json*"):
        text = re.sub(r'("start_unix_ns": ?)(\d+)', lambda item: f"{item[1]}{int(item[2]) + moved_ns}", path.read_text())
        path.write_text(re.sub(r'"end_reason": ?"exit"', '"end_reason": null', text) if goes_on else text)
    for path in (run / "attempts").rglob("steps-*.npy"):
        rows = load(path)
        rows["start_unix_ns"] += moved_ns
        save(path, rows)


@pytest.mark.parametrize(
    ("options", "ago_s", "says"),
    [
        ({"steps": 4}, 5, "Let it train on, then: rankscope analyze {run}"),
        ({"steps": 4}, 3600, "rankscope capture {run} --flight-recorder"),
        ({"steps": 4}, None, "ended after 4 steps: record a run of more steps"),
        ({"steps": 0}, None, "ended after 0 steps: record a run of more steps"),
        ({"steps": 0}, 3600, "rankscope capture {run} --flight-recorder"),
        ({"signals": False}, 5, "rankscope capture {run} --steps 20"),
        ({"signals": False}, 3600, "rankscope capture {run} --flight-recorder"),
        ({"signals": False}, None, "ended after 40 steps: record a run with more profiled steps"),
        ({"lost_after": {0: 0, 1: 0, 2: 0}}, 5, "stderr of the other ranks"),
        ({"lost_after": {0: 0, 1: 0, 2: 0}}, None, "stderr of the other ranks"),
        ({"coordinates": {rank: {"pp": rank} for rank in range(4)}}, None, "rankscope dashboard {run}"),
    ],
    ids=str,
)
def test_advice_with_too_little_data_fits_the_state_of_the_run(
    synthetic: Synthetic, options: dict[str, Any], ago_s: float | None, says: str
) -> None:
    run = synthetic(**options).write()
    if not options.get("steps", 1):
        info = RankInfo(rank=0, world_size=4, host="n", pid=1, start_unix_ns=10**18, end_reason="exit")
        write_record(rank_dir(run, 0, 0) / "rank.json", info)
    began_ago(run, ago_s or 3600, goes_on=ago_s is not None)
    verdict = analyze([run]).verdict
    assert verdict.kind == "insufficient_data"
    assert says.format(run=run) in verdict.next[0]
    assert ("yet" in verdict.summary) == (options == {"steps": 0} and ago_s is not None)


@pytest.mark.parametrize(
    ("ago_s", "goes_on", "silence"), [(60, True, None), (200, True, "s"), (3600, True, "min"), (3600, False, None)]
)
def test_run_without_new_steps_is_reported_beside_any_verdict(
    synthetic: Synthetic, ago_s: float, goes_on: bool, silence: str | None
) -> None:
    run = synthetic(plan=plan_for(2, us=60_000)).write()
    began_ago(run, ago_s, goes_on=goes_on)
    analysis = analyze([run])
    assert analysis.verdict.rank == 2
    silent = [warning for warning in analysis.source.warnings if "no rank has finished a step" in warning]
    assert len(silent) == (silence is not None)
    for warning in silent:
        match = re.search(r"for (\d+) (\w+) .*step 39.*ranks 0, 1, 2, 3 ", warning)
        assert match is not None
        assert match[2] == silence
        assert int(match[1]) in (range(180, 200) if silence == "s" else (60,))


def test_hang_before_the_first_step_is_reported(synthetic: Synthetic) -> None:
    run = synthetic(steps=0).write()
    write_record(rank_dir(run, 0, 0) / "rank.json", RankInfo(rank=0, world_size=4, host="n", pid=1, start_unix_ns=10**18))
    began_ago(run, 3600, goes_on=True)
    assert any(
        "no rank has finished a step for 60 min: rank 0 recorded no end" in warning for warning in analyze([run]).source.warnings
    )


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 2, "phases": {"forward": 300e6}},
        {"steps": 4, "plan": lambda _, step: {"us": 200e6, "tags": ["checkpoint"]} if step == 1 else None},
        {"steps": 6, "plan": lambda _, step: {"us": 200e6} if step in (0, 2) else None},
    ],
    ids=["long steps", "a long checkpoint", "steps that are long at times"],
)
def test_step_durations_that_explain_a_silence_cause_no_warning(synthetic: Synthetic, options: dict[str, Any]) -> None:
    run = synthetic(**options).write()
    steps_s = sum(row.wall_us for row in RunReader(run).steps(0, 0)) / 1e6
    began_ago(run, steps_s + 350, goes_on=True)
    assert not any("finished a step" in warning for warning in analyze([run]).source.warnings)


@pytest.mark.parametrize(("captured", "more"), [(3, 20), (20, 50)])
def test_short_capture_leads_to_the_advice_for_a_longer_one(synthetic: Synthetic, captured: int, more: int) -> None:
    run = synthetic().write()
    verdict = analyze_captured(RunReader(run), 0, range(4), range(10, 10 + captured)).verdict
    assert verdict.kind == "insufficient_data"
    assert verdict.next == [f"While it trains, profile more steps: rankscope capture {run} --steps {more}"]
    assert more > ENOUGH_STEPS


def stands(run: Path, *, late: int, ago_s: float = 200) -> None:
    """Write what the ranks are doing: all wait but ``late``."""
    now = time.time_ns()
    for rank in range(4):
        doing = RankActivity(
            attempt=0,
            rank=rank,
            step=40,
            phase="data" if rank == late else "backward",
            waiting=rank != late,
            since_unix_ns=now - round(ago_s * 1e9),
            updated_unix_ns=now,
        )
        write_record(activity_file(run, 0, rank), doing)


def test_verdict_on_a_silent_run_comes_from_its_activities(synthetic: Synthetic) -> None:
    run = synthetic().write()
    began_ago(run, 200, goes_on=True)
    stands(run, late=1)
    analysis = analyze([run])
    assert (analysis.verdict.kind, analysis.verdict.ranks) == ("hang", [1])
    assert "loading data" in analysis.verdict.summary
    assert [None if row.activity is None else row.activity.waiting for row in analysis.ranks] == [True, False, True, True]
    assert not any("loading data" in warning for warning in analysis.source.warnings)


def test_short_standstill_is_no_hang_yet(synthetic: Synthetic) -> None:
    run = synthetic().write()
    began_ago(run, 30, goes_on=True)
    stands(run, late=1, ago_s=30)
    analysis = analyze([run])
    assert analysis.verdict.kind != "hang"
    assert all(row.activity is not None for row in analysis.ranks)


def test_ended_run_has_no_activities(synthetic: Synthetic) -> None:
    run = synthetic().write()
    began_ago(run, 200, goes_on=False)
    stands(run, late=1)
    analysis = analyze([run])
    assert analysis.verdict.kind != "hang"
    assert all(row.activity is None for row in analysis.ranks)


# Which rank ended first


def ended(*how: tuple[EndReason | None, int | None], hosts: str = "aaaa", boot: str | None = None) -> dict[int, RankInfo]:
    """Return the infos of ranks 0, 1, … with the given (reason, end in milliseconds)."""
    return {
        rank: RankInfo(
            rank=rank,
            world_size=len(how),
            host=hosts[rank],
            boot_id=boot,
            pid=1,
            start_unix_ns=1,
            end_unix_ns=None if end_ms is None else end_ms * 1_000_000,
            end_reason=reason,
        )
        for rank, (reason, end_ms) in enumerate(how)
    }


@pytest.mark.parametrize(
    ("infos", "first"),
    [
        (ended(("exit", 1), ("exit", 2)), None),
        (ended((None, None), ("killed", 5)), 1),
        (ended(("killed", 9085), ("killed", 9000)), 1),  # the launcher ends the others when one has ended
        (ended(("killed", 9008), ("killed", 9000)), None),  # all at once, from outside
        (ended(("killed", 9008), ("crash", 9000)), 1),
        (ended(("crash", 9008), ("crash", 9000)), None),
        (ended(("crash", 9008), ("killed", 9000)), None),  # the survivor's error is not the cause
        (ended(("crash", 9800), ("crash", 9000)), 1),
        (ended(("killed", 9085), ("killed", 9000), hosts="ab"), None),  # two clocks
        (ended(("killed", 9085), ("killed", 9000), hosts="ab", boot="4be2"), 1),  # two containers, one clock
        (ended(("killed", 19_000), ("killed", 9000), hosts="ab"), 1),
        (ended(("killed", None), ("killed", 9000)), None),
    ],
)
def test_first_rank_to_end_is_named_if_it_is_unambiguous(infos: dict[int, RankInfo], first: int | None) -> None:
    assert endings(infos).first == first


def test_ranks_killed_by_the_launcher_are_worded_unlike_the_first() -> None:
    first_end = endings(ended(("killed", 9100), ("killed", 9000), ("crash", 9090)))
    assert first_end.failure() == "; ".join(first_end.sentences())
    assert first_end.sentences() == [
        "rank 1 killed before the end of training, the first to end",
        "rank 2 crashed after rank 1",
        "rank 0 killed after rank 1",
    ]


def test_simultaneous_deaths_name_no_first_rank() -> None:
    together = endings(ended(("killed", 9001), ("killed", 9000)))
    assert together.sentences() == ["ranks 0, 1 killed before the end of training"]
    assert together.failure() is None
