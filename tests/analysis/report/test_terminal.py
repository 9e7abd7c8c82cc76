"""Rendering of the verdict in a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.analysis.conftest import plan_for

from rankscope.analysis.engine import analyze
from rankscope.analysis.report.terminal import render_text
from rankscope.analysis.report.terminal_tables import SHOWN_ROWS
from rankscope.analysis.result.analysis import RareSteps, Verdict
from rankscope.analysis.result.text import excluded_text, joined, judged_by, judged_text, saves_text, sentences, units_text
from rankscope.base.text import format_duration
from rankscope.runs.paths import rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.small_files import write_record


def test_text_shows_verdict_ranks_wait_and_next_action(synthetic: Callable[..., Any]) -> None:
    run = synthetic(plan=plan_for(2, phase="data", us=60_000), price=2.0)
    analysis = analyze([run.write()])
    text = render_text(analysis)
    assert text.startswith("STRAGGLER\nwho   Rank 2 on host n1 makes the other 3 ranks wait")
    answer = text.split("\n\n")[0].splitlines()[1:]
    assert [line[:4] for line in answer if line[:1].strip()] == ["who ", "why ", "cost", "next", "more"]
    assert re.search(r"cost  slowdown 1\.\d\dx · .* GPU-hours lost · .* EUR · confidence 9\d% ·", text)
    assert re.search(r"4 ranks of 4, 40 steps,\s+coverage 100%", text)
    assert re.search(r"^ +2 <  n1 +\d+ ms +\d", text, re.MULTILINE)
    assert re.search(rf"^more  rankscope dashboard\s+{re.escape(str(run.path))}", text, re.MULTILINE)
    assert text.splitlines()[-1].strip() in " ".join(analysis.verdict.next)
    # and the other tables with --detail
    detailed = render_text(analysis, detail=True)
    wait = {row.name: row.value for row in analysis.findings[0].evidence}["imposed_wait"]
    for part in (
        "imposed wait, summed over the ranks that waited (from step records)",
        f"imposed wait of rank 2: {format_duration(wait)} per step and waiting rank",
        "who waited (columns) because of whom (rows)",
        "where the step goes",
    ):
        assert part in detailed
        assert part not in text


def test_text_names_the_command_for_the_other_tables(synthetic: Callable[..., Any]) -> None:
    analysis = analyze([synthetic().write()])
    assert "\nmore  --detail (all tables) · --format json\n" in render_text(analysis)
    assert "\nmore  rankscope analyze r --detail (all tables)\n" in render_text(analysis, command="rankscope analyze r")
    assert "all tables" not in render_text(analysis, detail=True)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"evidence_source": "steps", "judged_steps": 69, "judged_ranks": 4}, "judged by 69 steps of 4 ranks"),
        ({"evidence_source": "windows", "judged_steps": 1, "judged_ranks": 3}, "judged by 1 profiled step of 3 of 4 ranks"),
        (
            {"evidence_source": "flight_recorder", "judged_steps": 9, "judged_ranks": 4},
            "judged by flight recorder, 9 steps of 4 ranks",
        ),
        ({"evidence_source": "steps", "judged_steps": None, "judged_ranks": 4}, "judged by step records, 4 ranks"),
        ({"evidence_source": "traces", "judged_steps": None, "judged_ranks": None}, "judged by traces"),
        ({"evidence_source": None, "judged_steps": None, "judged_ranks": None}, ""),
    ],
)
def test_steps_of_the_verdict_are_shown_once(synthetic: Callable[..., Any], fields: dict[str, Any], text: str) -> None:
    analysis = analyze([synthetic().write()])
    verdict = msgspec.structs.replace(analysis.verdict, **fields)
    assert judged_by(verdict, 4) == text
    (cost,) = re.findall(
        r"^cost  (.*)$", render_text(msgspec.structs.replace(analysis, verdict=verdict), width=200), re.MULTILINE
    )
    assert cost.endswith(text)
    assert cost.count("judged") == (text != "")


def test_tables_charge_no_rank_if_the_verdict_names_none(synthetic: Callable[..., Any]) -> None:
    analysis = analyze([synthetic().write()])
    assert analysis.verdict.ranks == []
    assert analysis.imposed_wait
    text = render_text(analysis, detail=True)
    assert "imposed wait" not in text
    assert "who waited" not in text
    assert "straggler wait" not in text
    assert "waiting for later ranks" in text


def test_lines_fit_the_width_and_colours_are_optional(synthetic: Callable[..., Any]) -> None:
    analysis = analyze([synthetic(plan=plan_for(2, us=60_000)).write()])
    plain = render_text(analysis, width=80)
    path = str(analysis.source.path)
    assert all(len(line) <= 80 for line in plain.splitlines() if path not in line)
    assert "\x1b" not in plain
    coloured = render_text(analysis, color=True)
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == render_text(analysis)
    assert "\x1b[" in coloured


def test_large_job_shows_only_the_slowest_ranks(synthetic: Callable[..., Any]) -> None:
    analysis = analyze([synthetic(ranks=64, steps=12, plan=plan_for(41, us=60_000)).write()])
    text = render_text(analysis)
    rows = [int(rank) for rank in re.findall(r"^ *(\d+) [ <]  n", text, re.MULTILINE)]
    assert rows[0] == 41
    assert len(rows) == SHOWN_ROWS
    own = {row.rank: row.own_us or 0.0 for row in analysis.ranks}
    assert rows[1:] == sorted(rows[1:], key=lambda rank: -own[rank])
    assert f"{64 - SHOWN_ROWS} more ranks not shown" in text
    assert len(re.findall(r"^ *\d+ [ <]  n", render_text(analysis, detail=True), re.MULTILINE)) == 64


def test_host_at_fault_is_one_row(synthetic: Callable[..., Any]) -> None:
    plan = lambda rank, _step: {"us": 60_000} if rank in (40, 41) else None  # noqa: E731
    result = analyze([synthetic(ranks=64, steps=12, plan=plan).write()])
    verdict = msgspec.structs.replace(
        result.verdict,
        kind="straggler",
        ranks=[40, 41],
        rank=40,
        hosts=["n20"],
        summary="Host n20 is slow.",
        saves=(0.31, 0.4),
        judged_ranks=64,
        judged_steps=10,
    )
    text = render_text(msgspec.structs.replace(result, verdict=verdict), width=120)
    head, _, rest = text.partition("\n\n")
    assert "healing it saves 31% to 40% of the typical step" in head
    assert "judged by 10 steps of 64 ranks" in " ".join(head.split())
    table = next(block for block in rest.split("\n\n") if block.startswith("host "))
    assert re.match(r"n20 < +40, 41 ", table.splitlines()[1])
    assert f"{32 - SHOWN_ROWS} more hosts not shown" in table
    assert "\nrank " not in rest
    narrow = render_text(msgspec.structs.replace(result, verdict=verdict), width=80)
    assert all(len(line) <= 80 for line in narrow.splitlines() if str(result.source.path) not in line)


def test_ranks_are_not_grouped_by_small_or_single_rank_hosts(synthetic: Callable[..., Any]) -> None:
    small = analyze([synthetic(ranks=8, steps=12).write()])
    assert "\nhost " not in render_text(small)
    one_each = [msgspec.structs.replace(small.ranks[0], rank=rank, host=f"n{rank}") for rank in range(20)]
    assert "\nhost " not in render_text(msgspec.structs.replace(small, ranks=one_each))


def test_rotating_ranks_are_not_marked(synthetic: Callable[..., Any]) -> None:
    analysis = analyze([synthetic(plan=plan_for(2, us=60_000)).write()])
    assert "< at fault" in render_text(analysis)
    verdict = msgspec.structs.replace(analysis.verdict, pattern="rotating", rank=None, ranks=[0, 2])
    assert "<" not in render_text(msgspec.structs.replace(analysis, verdict=verdict))


def test_answer_includes_rare_steps_and_the_excluded_cost(synthetic: Callable[..., Any]) -> None:
    result = analyze([synthetic(steps=12).write()])
    rare = RareSteps(
        count=4,
        of_steps=200,
        steps=[50, 100, 150, 199],
        typical_us=1e5,
        longest_us=4e6,
        share=0.61,
        lost_us=16e6,
        moves=False,
        rank=0,
        host="n0",
        cause="checkpoint",
        summary="Rank 0 writes checkpoints.",
    )
    verdict = msgspec.structs.replace(result.verdict, costs_at_most=0.028, summary="No rank is slow.")
    text = render_text(msgspec.structs.replace(result, verdict=verdict, rare_steps=rare))
    head = " ".join("\n\n".join(text.split("\n\n")[:2]).split())
    assert "no rank or host costs more than 2.8% of the typical step" in head
    assert "61% of the run's time: Rank 0 writes checkpoints." in head


def test_simulated_gpus_and_warnings_are_shown(synthetic: Callable[..., Any]) -> None:
    text = render_text(analyze([synthetic(simulated=True, lost_after={3: 0}).write()]))
    assert "GPU readings SIMULATED" in text
    assert "warning: no records of rank 3" in text


def test_run_without_records_has_a_text(synthetic: Callable[..., Any]) -> None:
    text = render_text(analyze([synthetic(steps=0).write()]))
    assert text.startswith("INSUFFICIENT DATA\nwhat  Not enough data for a verdict: no rank has recorded anything yet.")


def test_durations_are_formatted_readably() -> None:
    assert [format_duration(us) for us in (0, 217, 999.9, 1500, 61_234, 999_999, 1_300_000, 93e6, 6e10)] == [
        "0 µs",
        "217 µs",
        "1.0 ms",
        "1.5 ms",
        "61 ms",
        "1.0 s",
        "1.3 s",
        "93 s",
        "17 h",
    ]


def test_escape_sequences_of_a_run_do_not_reach_the_terminal(synthetic: Callable[..., Any]) -> None:
    # given a host name with an escape sequence that changes the terminal's title
    analysis = analyze([synthetic().write()])
    hostile = msgspec.structs.replace(analysis.ranks[0], host="h\x1b]0;pwned\x07")
    analysis = msgspec.structs.replace(analysis, ranks=[hostile, *analysis.ranks[1:]])
    # then it is shown without the sequence, and our own colours are the only ones
    assert "\x1b" not in render_text(analysis)
    assert "\x07" not in render_text(analysis)
    coloured = render_text(analysis, color=True)
    assert coloured.count("\x1b") == 2
    assert coloured.startswith("\x1b[")


def test_narrow_terminal_gets_fewer_columns_and_every_line_fits(synthetic: Callable[..., Any]) -> None:
    # given ranks with profiled windows and step records, long host names, matched collectives
    analysis = analyze([synthetic(plan=plan_for(2, us=60_000)).write()])
    ranks = [
        msgspec.structs.replace(
            row,
            host="a-host-with-a-very-long-name",
            window_us=1e6,
            compute_us=1e6,
            overlap_us=1e6,
            exposed_communication_us=1e6,
            exposed_memcpy_us=1e6,
            idle_us=1e6,
            overlap_ratio=1.0,
        )
        for row in analysis.ranks
    ]
    matched = msgspec.structs.replace(analysis.collectives, matched=123_456, unmatched=123_456, clock_residual_us=999_000.0)
    analysis = msgspec.structs.replace(analysis, ranks=ranks, collectives=matched, imposed_wait_source="windows")
    path = str(analysis.source.path)
    for width in (80, 88, 120):
        text = render_text(analysis, width=width, detail=True)
        assert [line for line in text.splitlines() if len(line) > width and path not in line] == []
        assert ("overlap " in text) == (width > 100)
        assert "own/step  blocked/step" in text


def test_recorder_cost_shown_is_that_of_the_most_expensive_rank(synthetic: Callable[..., Any]) -> None:
    run = synthetic(ranks=3, steps=12)
    path = run.write()
    assert analyze([path]).source.recorder_share is None
    assert "the recorder took" not in render_text(analyze([path]))
    reader = RunReader(path)
    walls = [sum(row.wall_us for row in reader.steps(0, rank)) for rank in range(3)]
    # given two ranks with all their records, and one whose cost covers more steps than it has records
    for rank, share, expired in ((0, 0.002, {}), (1, 0.0061, {}), (2, 0.5, {"steps": 100})):
        info = reader.rank(0, rank)
        assert info is not None
        cost = msgspec.structs.replace(info, recorder_cost_us=share * walls[rank], budget=0.01, expired_records=expired)
        write_record(rank_dir(path, 0, rank) / "rank.json", cost)
    analysis = analyze([path])
    assert analysis.source.recorder_share == pytest.approx(0.0061)
    assert analysis.source.recorder_budget == 0.01
    assert "the recorder took" not in render_text(analysis)
    assert "\nthe recorder took 0.6% of the step time (budget 1%)\n" in render_text(analysis, detail=True)
    # And a share beyond the budget is explained where the run is short
    beyond = msgspec.structs.replace(analysis.source, recorder_share=0.049)
    assert "12 steps only" in render_text(msgspec.structs.replace(analysis, source=beyond), width=200)
    beyond = msgspec.structs.replace(beyond, steps=100_000)
    assert "\nthe recorder took 4.9% of the step time (budget 1%)\n" in render_text(
        msgspec.structs.replace(analysis, source=beyond)
    )


# Sentences that name ranks and hosts at fault, and what is known of their cost

HOSTS = {rank: f"node{rank // 8:04}" for rank in range(64)}


@pytest.mark.parametrize(
    ("ranks", "whole", "text"),
    [
        ([*range(8)], ["node0000"], "host node0000 (all 8 of its ranks)"),
        ([*range(25, 32)], ["node0003"], "host node0003 (ranks 25 to 31, 7 of its 8 ranks)"),
        ([*range(16)], ["node0000", "node0001"], "hosts node0000 and node0001 (all 16 of their ranks)"),
        ([*range(15)], ["node0000", "node0001"], "hosts node0000 and node0001 (15 of their 16 ranks)"),
        ([40, *range(8)], ["node0000"], "host node0000 (all 8 of its ranks) and rank 40"),
        ([5], [], "rank 5"),
        ([5, 3], [], "ranks 3, 5"),
        ([], ["node0000"], "host node0000"),
        (
            [*range(48)],
            [*dict.fromkeys(HOSTS.values())][:6],
            "hosts node0000, node0001, node0002, node0003 and 2 more (all 48 of their ranks)",
        ),
    ],
)  # fmt: skip
def test_hosts_are_named_with_their_slow_ranks(ranks: list[int], whole: list[str], text: str) -> None:
    assert units_text(ranks, HOSTS, whole) == text


def test_host_with_one_rank_and_a_rank_without_a_host_are_formatted() -> None:
    assert units_text([3], {0: "a", 3: "b"}, ["b"]) == "host b (rank 3)"
    assert units_text([3, 9], {0: "a", 3: "b"}, ["b"]) == "host b (rank 3) and rank 9"


def test_names_are_joined_as_a_phrase() -> None:
    assert [joined("abcdef"[:count], 3) for count in (1, 2, 3, 5)] == ["a", "a and b", "a, b and c", "a, b, c and 2 more"]


def test_saving_interval_names_its_subject_and_is_rounded_outwards() -> None:
    assert saves_text((0.194, 0.2551), [3], []) == "healing it saves 19% to 26% of the typical step"
    assert "healing them saves" in saves_text((0.2, 0.3), [3, 5], [])
    assert "healing it saves" in saves_text((0.2, 0.3), [3, 5], ["a"])
    assert saves_text(None, [], []) == ""


def test_excluded_cost_and_judged_steps_are_formatted() -> None:
    verdict = Verdict(kind="balanced", costs_at_most=0.0251, judged_ranks=60, judged_steps=1000, summary="")
    assert "more than 2.6% of" in excluded_text(verdict)
    assert judged_text(verdict, 64) == "1,000 steps of 60 of 64 ranks"
    assert judged_text(verdict, 60) == judged_text(verdict, None) == "1,000 steps of 60 ranks"
    assert excluded_text(Verdict(kind="hang", summary="")) == judged_text(Verdict(kind="hang", summary=""), 8) == ""


def test_question_among_sentences_keeps_its_mark() -> None:
    assert sentences(["Load ahead", "What takes longer there?", "Compare"]) == "Load ahead. What takes longer there? Compare"
