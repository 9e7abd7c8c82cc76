"""Requesting Flight Recorder dumps from the ranks of a live run."""

from __future__ import annotations

import os

from rankscope.base.text import ranks_text
from rankscope.cli.live.capture_result import Dump, DumpResult, Missing, no_record
from rankscope.cli.live.live_run import LiveRun, poll, print_progress
from rankscope.runs.control import ControlAnswer, ControlRequest, read_answer
from rankscope.runs.paths import flight_dir


def dump_recorders(live: LiveRun, request: ControlRequest, expected: list[int], *, until: float) -> DumpResult:
    """Send the request and wait until ``until`` (monotonic seconds) for the answers of the ``expected`` ranks."""
    answers: dict[int, ControlAnswer] = {}

    def look() -> bool | None:
        nonlocal expected
        for rank in expected:
            if rank not in answers and (control_answer := read_answer(live.path, request.id, rank=rank)) is not None:
                answers[rank] = control_answer
                if live.follow(control_answer) and request.ranks is None:
                    expected = live.ranks
                    return None
        silent = [rank for rank in expected if rank not in answers]
        # A refusal for the whole job: the request came too early.
        if silent and (control_answer := read_answer(live.path, request.id)) is not None and not control_answer.accepted:
            answers.update(dict.fromkeys(silent, control_answer))
            return True
        return True if all(map(live.has_ended, silent)) else None

    with live.request(request) as mark_answered:
        print_progress(f"asked {ranks_text(expected)} for what the Flight Recorder holds")
        if poll(look, until=until, ranks=len(expected)):
            mark_answered()
    infos = live.infos()
    absent = no_record(live.absent) if request.ranks is None else []
    return DumpResult(
        request=request.id,
        attempt=live.attempt,
        dumps=[
            Dump(rank=rank, host=infos[rank].host if rank in infos else None, path=os.fspath(path.relative_to(live.path)))
            for rank in expected
            for path in sorted(flight_dir(live.path, live.attempt).glob(f"rank-{rank:05d}-{request.id}-*"))
        ],
        missing=[
            Missing(rank=rank, reason=rank_answer.reason or "refused" if rank_answer is not None else "no answer in time")
            for rank in expected
            if (rank_answer := answers.get(rank)) is None or not rank_answer.accepted
        ]
        + absent,
    )
