"""Having some of a live run's next steps profiled, and waiting for what they show."""

from __future__ import annotations

import os
import time
from typing import Final

from rankscope.analysis.captured import analyze_captured
from rankscope.cli.capture_result import CaptureResult, Missing
from rankscope.cli.live_run import LiveRun, listed, say, waited_for
from rankscope.runs.control import MAX_STEPS, ControlAnswer, ControlRequest, read_answer
from rankscope.runs.paths import rank_dir

SETTLE_SECONDS: Final = 1.0
"""Breakdowns are written before the collectives of the same window; these come a moment later."""


def capture_steps(live: LiveRun, request: ControlRequest, expected: list[int], *, until: float) -> CaptureResult:
    """Ask, and wait until ``until`` (monotonic seconds) for the profiles of the ``expected`` ranks."""
    with live.asked(request) as note_answered:
        say(f"asked for {request.steps} steps of {listed(expected)}")
        answer = waited_for(lambda: _answer(live, request), until=until)
        if answer is not None:
            note_answered()
    if answer is None:
        reason = _unanswered(live)
        say(reason)
        return CaptureResult(
            request=request.id, accepted=None, reason=reason, attempt=live.attempt, missing=_all(expected, "nobody answered")
        )
    if not answer.accepted or (steps := _steps_of(answer)) is None:
        reason = answer.reason or "no reason given" if not answer.accepted else "the answer makes no sense"
        say(f"refused: {reason}")
        return CaptureResult(
            request=request.id, accepted=False, reason=reason, attempt=live.attempt, missing=_all(expected, "refused")
        )
    if answer.ranks is not None:
        expected = sorted(set(answer.ranks))
    say(f"accepted: steps {steps[0]} to {steps[-1]} will be profiled by {listed(expected)}")
    missing = _wait_for_profiles(live, expected, steps, until=until)
    present = [rank for rank in expected if rank not in {row.rank for row in missing}]
    if missing:
        say(f"no complete profile of {listed([row.rank for row in missing])}: {missing[0].reason}")
    return CaptureResult(
        request=request.id,
        accepted=True,
        reason=missing[0].reason if missing else None,
        attempt=live.attempt,
        first_step=steps[0],
        last_step=steps[-1],
        ranks=present,
        missing=missing,
        traces=_traces(live, expected, steps) if request.keep_trace else [],
        analysis=analyze_captured(live.reader, live.attempt, expected, steps),
    )


def _answer(live: LiveRun, request: ControlRequest) -> ControlAnswer | None:
    given = read_answer(live.path, request.id)
    if given is None and not _still_live(live):
        return ControlAnswer(id=request.id, accepted=False, reason="the job ended before it answered", answered_unix_ns=0)
    return given


def _steps_of(answer: ControlAnswer) -> range | None:
    # Anybody who may write into the folder may have answered.
    first, last = answer.first_step, answer.last_step
    return range(first, last + 1) if first is not None and last is not None and first <= last < first + MAX_STEPS else None


def _still_live(live: LiveRun) -> bool:
    infos = live.infos()
    return any(rank not in infos or infos[rank].end_unix_ns is None for rank in live.ranks)


def _unanswered(live: LiveRun) -> str:
    if live.reader.attempts()[-1:] != [live.attempt]:
        return "no answer: the job has been started anew in the meantime; ask again"
    return (
        "no answer: the job records no profiles, or rank 0 takes no steps, or the clocks of its host and this one are far apart"
    )


def _wait_for_profiles(live: LiveRun, expected: list[int], steps: range, *, until: float) -> list[Missing]:
    waiting = set(expected)
    said = time.monotonic()

    def look() -> bool | None:
        nonlocal said
        infos = live.infos()
        for rank in sorted(waiting):
            # Asked before the rows are read: what a rank has written by its end is then all there.
            ended = rank in infos and infos[rank].end_unix_ns is not None
            if not _lacking(live, rank, steps):
                waiting.discard(rank)
            elif ended:
                return False
        if waiting and time.monotonic() - said > 10:
            said = time.monotonic()
            say(f"profiled by {len(expected) - len(waiting)} of {len(expected)} ranks so far")
        return None if waiting else True

    if waited_for(look, until=until):
        time.sleep(SETTLE_SECONDS)
        return []
    infos = live.infos()
    return [
        Missing(rank=rank, reason=_why(lacking, infos[rank].end_reason if rank in infos else None, steps))
        for rank in expected
        if (lacking := _lacking(live, rank, steps))
    ]


def _lacking(live: LiveRun, rank: int, steps: range) -> list[int]:
    profiled = {row.step for row in live.reader.windows(live.attempt, rank) if row.step in steps}
    return [step for step in steps if step not in profiled]


def _why(lacking: list[int], end_reason: str | None, steps: range) -> str:
    what = "none of the steps was" if len(lacking) == len(steps) else f"step {lacking[0]} was not"
    if end_reason is not None:
        return f"{what} profiled; the rank ended ({end_reason})"
    return f"{what} profiled in time; the job's stderr says so when a window is left out"


def _all(ranks: list[int], reason: str) -> list[Missing]:
    return [Missing(rank=rank, reason=reason) for rank in ranks]


def _traces(live: LiveRun, ranks: list[int], steps: range) -> list[str]:
    return [
        os.fspath(path.relative_to(live.path))
        for rank in ranks
        for path in sorted((rank_dir(live.path, live.attempt, rank) / "traces").glob(f"window-{steps.start:09d}*"))
    ]
