"""Flight Recorder dumps of jobs that train: who makes the others wait, and when that cannot be said."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from tests.analysis.flight_dumps import Job, always

from rankscope.analysis.engine import analyze
from rankscope.analysis.report.terminal import render_text
from rankscope.base.errors import InputError


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(("dp", "tp"), [(4, 1), (2, 2), (2, 4), (8, 2)])
def test_late_rank_is_named(tmp_path: Path, dp: int, tp: int, *, as_json: bool) -> None:
    # given a job in which rank 2 is 15 of 50 ms late
    analysis = analyze([Job(always(2, 15.0), dp=dp, tp=tp).write(tmp_path / "dumps", as_json=as_json)])
    verdict = analysis.verdict
    # then it is named, and not the ranks that are late because they waited for it
    assert (verdict.kind, verdict.ranks, verdict.pattern, verdict.cause) == ("straggler", [2], "fixed", "unknown")
    assert (verdict.evidence_source, analysis.source.kind, analysis.imposed_wait_source) == ("flight_recorder",) * 3
    assert verdict.confidence is not None
    assert verdict.confidence > 0.9
    # and the answer is about the steps that nobody marked, without start-up
    assert analysis.source.steps == 37
    assert verdict.slowdown == pytest.approx(50 / 35, rel=0.05)
    assert analysis.imposed_wait[0].imposed_us == pytest.approx((dp * tp - 1) * 37 * 15_000, rel=0.05)
    assert not analysis.source.warnings


@pytest.mark.slow
def test_noise_names_no_rank(tmp_path: Path) -> None:
    for seed in range(10):
        analysis = analyze([Job(always(-1, 0.0, seed=seed, noise=3.0), dp=2, tp=2).write(tmp_path / str(seed))])
        assert analysis.verdict.kind in ("balanced", "insufficient_data"), analysis.verdict.summary
        assert analysis.verdict.rank is None


def test_clock_offsets_of_hosts_do_not_change_the_verdict(tmp_path: Path) -> None:
    # given hosts whose clocks are a third of a second apart from rank to rank
    analysis = analyze([Job(always(3, 15.0), dp=4, skewed_ns=333_000_000).write(tmp_path / "dumps")])
    assert analysis.verdict.ranks == [3]


def test_evaluation_between_steps_does_not_count(tmp_path: Path) -> None:
    # given a job that evaluates after every tenth step, with collectives of its own, for which all wait long for rank 0
    late = always(2, 15.0)
    job = Job(late, steps=0)
    for step in range(60):
        job.train(step)
        if step % 10 == 9:
            job.issue("0", "all_reduce", [2], step * 50_000_000 + 40_000_000, {0: 0.0, 1: 80.0, 2: 80.0, 3: 80.0}, autograd=False)
    analysis = analyze([job.write(tmp_path / "dumps")])
    assert (analysis.verdict.ranks, analysis.source.steps) == ([2], 57)
    assert analysis.imposed_wait[0].rank == 2


def test_dump_without_steps_is_one_window(tmp_path: Path) -> None:
    job = Job(always(1, 15.0), steps=0)
    for number in range(20):
        behind = {rank: 15.0 * (rank == 1) for rank in range(4)}
        job.meet("0", "all_reduce", [number**2], number * 50_000_000, behind, autograd=False)
    analysis = analyze([job.write(tmp_path / "dumps")])
    assert (analysis.verdict.ranks, analysis.source.steps) == ([1], 1)
    assert "steps are not known" in analysis.source.warnings[0]
    assert "in the one window at hand" in analysis.verdict.summary


def test_pipelines_are_not_judged_by_collectives_alone(tmp_path: Path) -> None:
    # given a job that spends most of its communication in transfers between stages, whose waits are not attributed
    job = Job(always(2, 15.0), steps=0)
    for step in range(40):
        for rank in range(4):
            job.issue("0", "coalesced", [], step * 50_000_000, {rank: 80.0}, autograd=False)
        job.train(step)
    verdict = analyze([job.write(tmp_path / "dumps")]).verdict
    assert (verdict.kind, verdict.rank) == ("insufficient_data", None)
    assert "sends and receives" in verdict.summary


def test_transfers_without_durations_are_unknown_and_not_zero(tmp_path: Path) -> None:
    # given transfers that torch has not timed, after which rank 2 comes late to each collective
    job = Job(always(2, 15.0), steps=0)
    for step in range(40):
        for rank in range(4):
            job.issue("0", f"recv {rank}<-{(rank - 1) % 4}", [64], step * 50_000_000, {rank: 0.0}, autograd=False)
            del job.entries[rank][-1]["duration_ms"]
        job.train(step)
    verdict = analyze([job.write(tmp_path / "dumps")]).verdict
    assert (verdict.kind, verdict.rank) == ("insufficient_data", None)


def test_operations_of_some_ranks_only_do_not_shift_the_others(tmp_path: Path) -> None:
    # given that the first ranks of the tensor-parallel groups issue ten operations more at the start of each step
    job = Job(always(4, 15.0), dp=4, tp=4, steps=0)
    job.configs["lead"] = ("lead", [0, 4, 8, 12])
    for step in range(40):
        for number in range(10):
            at = 1_000_000_000 + step * 50_000_000 + number
            job.issue("lead", "all_reduce", [1], at, dict.fromkeys((0, 4, 8, 12), 0.0), autograd=False)
        job.train(step)
    assert analyze([job.write(tmp_path / "dumps")]).verdict.ranks == [4]


def test_loss_reduction_does_not_multiply_the_cost(tmp_path: Path) -> None:
    # given data parallelism in which one delay shows in both buckets, and a number that the script reduces
    job = Job(always(-1, 0.0), steps=0)
    for step in range(40):
        for bucket in range(2):
            late = {rank: 15.0 * (rank == 2) for rank in range(4)}
            job.meet("dp0", "all_reduce", [100_000 + bucket], step * 50_000_000 + bucket, late, autograd=True)
        job.issue("dp0", "all_reduce", [1], step * 50_000_000 + 9, dict.fromkeys(range(4), 0.0), autograd=False)
    verdict = analyze([job.write(tmp_path / "dumps")]).verdict
    assert verdict.ranks == [2]
    assert verdict.slowdown == pytest.approx(50 / 35, rel=0.05)
    assert "usually too low" in verdict.summary


def test_dumps_without_durations_name_the_setting_that_records_them(tmp_path: Path) -> None:
    job = Job(always(2, 15.0))
    for entry in (entry for row in job.entries for entry in row):
        del entry["duration_ms"]
    with pytest.raises(InputError, match="TORCH_NCCL_ENABLE_TIMING=1"):
        analyze([job.write(tmp_path / "dumps")])


def test_missing_ranks_are_reported(tmp_path: Path) -> None:
    folder = Job(always(2, 15.0)).write(tmp_path / "dumps", ranks=[0, 1, 2])
    analysis = analyze([folder])
    assert analysis.verdict.kind == "insufficient_data"
    assert analysis.source.warnings == ["dumps of 3 of 4 ranks: groups with a missing rank are left out"]
    assert analysis.source.coverage == pytest.approx(0.75)
    verdict = analyze([Job(always(2, 15.0)).write(tmp_path / "one", ranks=[0])]).verdict
    assert "one rank cannot show" in verdict.summary


def test_rank_with_a_missing_dump_leads_to_no_other_named_rank(tmp_path: Path) -> None:
    # given a rank that makes its tensor-parallel group wait, and so all others, and whose dump is not there
    folder = Job(always(2, 15.0), dp=4, tp=4).write(tmp_path / "dumps", ranks=[rank for rank in range(16) if rank != 2])
    verdict = analyze([folder]).verdict
    assert (verdict.kind, verdict.rank) == ("insufficient_data", None)
    assert "missing rank" in verdict.summary
    # though another one is named, whatever is missing elsewhere
    folder = Job(always(9, 15.0), dp=4, tp=4).write(tmp_path / "other", ranks=[rank for rank in range(16) if rank != 2])
    assert analyze([folder]).verdict.ranks == [9]


def test_damaged_dump_is_left_out_with_a_warning(tmp_path: Path) -> None:
    folder = Job(always(2, 15.0), dp=2, tp=2).write(tmp_path / "dumps")
    (folder / "dump_0").write_bytes((folder / "dump_0").read_bytes()[:500])
    analysis = analyze([folder])
    assert "ends early" in analysis.source.warnings[0]
    assert analysis.source.ranks == 3
    for file in folder.iterdir():
        file.write_bytes(b"\x80\x02")
    with pytest.raises(InputError, match="ends early"):
        analyze([folder])


@pytest.mark.parametrize("duration", [-1.0, float("nan"), float("inf"), 1e30, "1", True, None, [1.0]])
def test_impossible_duration_is_ignored(tmp_path: Path, duration: object) -> None:
    job = Job(always(2, 15.0))
    for row in job.entries:
        row[50]["duration_ms"] = duration
    analysis = analyze([job.write(tmp_path / "dumps")])
    assert analysis.verdict.ranks == [2]
    assert msgspec.json.decode(msgspec.json.encode(analysis))["verdict"]["rank"] == 2


@pytest.mark.parametrize("side", ["input", "output"])
def test_uneven_all_to_all_is_not_waiting(tmp_path: Path, side: str) -> None:
    # given an all-to-all in which one rank gets little and leaves early
    job = Job(always(-1, 0.0), steps=0)
    for step in range(40):
        job.train(step)
        waits = {rank: 0.0 if rank == 1 else 15.0 for rank in range(4)}
        job.issue("0", "all_to_all", [4096, 256], step * 50_000_000 + 20_000_000, waits, autograd=False)
        job.entries[1][-1][f"{side}_sizes"] = [[8, 256]]
    analysis = analyze([job.write(tmp_path / "dumps")])
    assert analysis.collectives.excluded == {"uneven_all_to_all": 37}
    assert analysis.verdict.rank is None


def test_gradient_accumulation_micro_steps_are_no_steps(tmp_path: Path) -> None:
    # given tensor parallelism in which each step has eight micro-steps, after the last of which gradients are reduced
    job = Job(always(-1, 0.0), dp=4, tp=2, steps=0)
    for step in range(20):
        behind = {rank: 15.0 * (rank == 2) for rank in range(8)}
        for micro in range(8):
            for number in range(6):
                at = step * 50_000_000 + micro * 5_000_000 + number * 100_000
                for row in range(4):
                    job.meet(f"tp{row}", "all_reduce", [64], at, behind, autograd=number >= 3)
        for column in range(2):
            job.meet(f"dp{column}", "all_reduce", [9999], step * 50_000_000 + 40_000_000, behind, autograd=True)
    analysis = analyze([job.write(tmp_path / "dumps")])
    # then the steps are those of the optimizer, and the one delay of each is charged to rank 2
    assert (analysis.verdict.ranks, analysis.source.steps) == ([2], 17)
    assert analysis.verdict.slowdown == pytest.approx(50 / 35, rel=0.05)


def test_dump_of_too_few_steps_is_insufficient_data(tmp_path: Path) -> None:
    # given a buffer in which three steps fit, each of many layers
    verdict = analyze([Job(always(2, 15.0), dp=2, tp=2, steps=3, layers=300).write(tmp_path / "dumps")]).verdict
    assert (verdict.kind, verdict.rank) == ("insufficient_data", None)
    assert "TORCH_FR_BUFFER_SIZE" in verdict.summary


@pytest.mark.parametrize(
    ("steps", "constant", "ranks", "advice"),
    [
        (3, False, None, "more steps"),
        (4, False, None, "more steps"),
        (40, True, None, "record a run"),
        (40, False, [2], "all ranks"),
        (40, True, [0, 1, 2], "all ranks"),
    ],
)
def test_advice_of_dumps_asks_for_all_ranks_only_if_some_are_missing(
    tmp_path: Path, steps: int, constant: bool, ranks: list[int] | None, advice: str
) -> None:
    job = Job(always(-1, 0.0), dp=2, tp=2, steps=steps, layers=300 if steps == 3 else 8)
    for entry in (entry for row in job.entries for entry in row if constant):
        entry["time_created_ns"] = 1_700_000_000_000_000_000
    verdict = analyze([job.write(tmp_path / "dumps", ranks=ranks)]).verdict
    assert verdict.kind == "insufficient_data"
    words = " ".join(verdict.next).lower()
    assert next(word for word in ("more steps", "all ranks", "record a run") if word in words) == advice, words


@pytest.mark.parametrize("steps", [4, 7])
def test_balanced_verdict_needs_enough_steps(tmp_path: Path, steps: int) -> None:
    verdict = analyze([Job(always(-1, 0.0), steps=steps).write(tmp_path / "dumps")]).verdict
    assert (verdict.kind, verdict.rank) == ("insufficient_data", None)


def test_receiver_is_not_named_for_its_sender(tmp_path: Path) -> None:
    # given a rank that waits 15 ms for data from another stage, beside all-reduces that take much longer
    job = Job(always(2, 15.0), steps=0)
    for step in range(40):
        for rank in range(4):
            job.issue(
                "0", f"recv {rank}<-{(rank - 1) % 4}", [64], step * 50_000_000, {rank: 15.0 if rank == 2 else 0.0}, autograd=False
            )
        job.train(step)
    for entry in (entry for row in job.entries for entry in row if entry["input_sizes"] != [[64]]):
        entry["duration_ms"] += 100.0
    verdict = analyze([job.write(tmp_path / "dumps")]).verdict
    assert (verdict.kind, verdict.rank) == ("insufficient_data", None)
    assert "sends and receives" in verdict.summary


def test_groups_whose_members_are_unknown_are_not_compared(tmp_path: Path) -> None:
    # given sibling groups of one name, and no list of members
    job = Job(always(2, 15.0), dp=2, tp=4)
    job.configs = {}
    for entry in (entry for row in job.entries for entry in row):
        name, about = entry["process_group"]
        entry["process_group"] = (name.rstrip("0123456789") or name, about)
    verdict = analyze([job.write(tmp_path / "dumps")]).verdict
    assert (verdict.kind, verdict.rank) == ("insufficient_data", None)


def test_dumps_of_different_moments_cause_a_warning(tmp_path: Path) -> None:
    job = Job(always(2, 15.0), steps=80)
    job.entries[0] = job.entries[0][:120]
    analysis = analyze([job.write(tmp_path / "dumps")])
    assert any("at about the same time" in warning for warning in analysis.source.warnings)


def test_durations_in_whole_milliseconds_are_accepted(tmp_path: Path) -> None:
    job = Job(always(2, 15.0, noise=0.0))
    for entry in (entry for row in job.entries for entry in row):
        entry["duration_ms"] = round(entry["duration_ms"])
    assert analyze([job.write(tmp_path / "dumps", as_json=True)]).verdict.ranks == [2]


def test_duration_longer_than_its_operation_is_ignored(tmp_path: Path) -> None:
    # given one duration of an hour, of an operation that ended after 100 ms
    job = Job(always(2, 15.0))
    job.entries[1][50]["duration_ms"] = 3_600_000.0
    assert analyze([job.write(tmp_path / "dumps")]).verdict.ranks == [2]


def test_constant_times_are_insufficient_data(tmp_path: Path) -> None:
    job = Job(always(2, 15.0))
    for entry in (entry for row in job.entries for entry in row):
        entry["time_created_ns"] = 1_700_000_000_000_000_000
    verdict = analyze([job.write(tmp_path / "dumps")]).verdict
    assert (verdict.kind, verdict.rank) == ("insufficient_data", None)


def test_huge_sizes_do_not_change_the_verdict(tmp_path: Path) -> None:
    job = Job(always(2, 15.0))
    for op in ("all_reduce", "all_to_all"):
        late = {rank: 15.0 * (rank == 2) for rank in range(4)}
        job.meet("0", op, [2**61] * 64, 0, late, autograd=True)
    assert analyze([job.write(tmp_path / "dumps")]).verdict.ranks == [2]


def test_other_file_beside_the_dumps_does_not_hide_them(tmp_path: Path) -> None:
    folder = Job(always(2, 15.0)).write(tmp_path / "dumps", as_json=True)
    (folder / "README.md").write_text("taken while training")
    assert analyze([folder]).verdict.ranks == [2]


def test_trace_options_are_refused_for_dumps(tmp_path: Path) -> None:
    folder = Job(always(2, 15.0)).write(tmp_path / "dumps")
    assert analyze([folder], detail=True) == analyze([folder])
    with pytest.raises(InputError, match="for traces"):
        analyze([folder], communication_pattern=re.compile("mine"))


def test_text_names_its_source_and_the_next_action(tmp_path: Path) -> None:
    text = render_text(analyze([Job(always(2, 15.0)).write(tmp_path / "dumps")]), width=100)
    assert "judged by flight recorder" in text
    assert "rankscope run -- torchrun" in text
    assert "on the page" not in text


def test_traces_and_other_files_are_not_read_as_dumps(tmp_path: Path) -> None:
    (tmp_path / "rank-0.json").write_text(json.dumps({"traceEvents": [], "entries": []}))
    with pytest.raises(InputError, match="rank-0"):
        analyze([tmp_path])
    (tmp_path / "rank-0.json").write_text("{}")
    with pytest.raises(InputError):
        analyze([tmp_path])
