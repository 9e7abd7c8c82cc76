"""The verdict in a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from rankscope.analysis.engine import analyze
from rankscope.analysis.render import SHOWN_RANKS, render_text
from rankscope.analysis.verdict import duration


def test_the_sentence_the_ranks_the_wait_and_what_to_do_next(synthetic: Callable[..., Any]) -> None:
    run = synthetic(plan=lambda rank, _step: {"phase": "data", "us": 60_000} if rank == 2 else None, price=2.0)
    text = render_text(analyze([run.write()]))
    assert text.startswith("STRAGGLER\nRank 2 on host n1 makes the other 3 ranks wait")
    assert re.search(r"slowdown 1\.\d\dx · .* GPU-hours lost · .* EUR · confidence 9\d% · judged by steps", text)
    assert re.search(r"4 ranks of 4, 40 steps,\s+coverage 100%", text)
    assert re.search(r"^ +2  n1 +\d+ ms +\d", text, re.MULTILINE)
    assert "imposed wait, summed over the ranks that waited (from step records)" in text
    assert re.search(rf"next\n(  .*\n)*  rankscope dashboard\s+{re.escape(str(run.path))}$", text)


def test_lines_keep_to_the_width_and_colours_are_optional(synthetic: Callable[..., Any]) -> None:
    analysis = analyze([synthetic(plan=lambda rank, _step: {"us": 60_000} if rank == 2 else None).write()])
    plain = render_text(analysis, width=80)
    path = str(analysis.source.path)
    assert all(len(line) <= 80 for line in plain.splitlines() if path not in line)
    assert "\x1b" not in plain
    coloured = render_text(analysis, color=True)
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == render_text(analysis)
    assert "\x1b[" in coloured


def test_a_large_job_shows_the_interesting_ranks_only(synthetic: Callable[..., Any]) -> None:
    analysis = analyze([synthetic(ranks=64, steps=12, plan=lambda rank, _step: {"us": 60_000} if rank == 41 else None).write()])
    text = render_text(analysis)
    assert re.search(r"^ *41  ", text, re.MULTILINE)
    assert f"{64 - SHOWN_RANKS} more ranks not shown" in text


def test_simulated_gpus_and_warnings_are_shown(synthetic: Callable[..., Any]) -> None:
    text = render_text(analyze([synthetic(simulated=True, lost_after={3: 0}).write()]))
    assert "GPU readings SIMULATED" in text
    assert "warning: no records of rank 3" in text


def test_nothing_known_is_still_an_answer(synthetic: Callable[..., Any]) -> None:
    text = render_text(analyze([synthetic(steps=0).write()]))
    assert text.startswith("INSUFFICIENT DATA\nNot enough data for a verdict: no rank has recorded anything yet.")


def test_durations_for_people() -> None:
    assert [duration(us) for us in (0, 217, 999.9, 1500, 61_234, 999_999, 1_300_000, 93e6, 6e10)] == [
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


def test_no_escape_sequence_of_a_run_reaches_the_terminal(synthetic: Callable[..., Any]) -> None:
    # given a host name that would retitle the terminal
    analysis = analyze([synthetic().write()])
    hostile = msgspec.structs.replace(analysis.ranks[0], host="h\x1b]0;pwned\x07")
    analysis = msgspec.structs.replace(analysis, ranks=[hostile, *analysis.ranks[1:]])
    # then it is shown without, and our own colours are the only ones
    assert "\x1b" not in render_text(analysis)
    assert "\x07" not in render_text(analysis)
    coloured = render_text(analysis, color=True)
    assert coloured.count("\x1b") == 2
    assert coloured.startswith("\x1b[")
