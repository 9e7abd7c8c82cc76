"""Requesting a profile of some of a live run's next steps, and waiting for it."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Final

from rankscope.analysis.captured import analyze_captured
from rankscope.analysis.result.analysis import Verdict
from rankscope.analysis.run_analysis import analyze_run
from rankscope.base.errors import InputError
from rankscope.base.text import ranks_text
from rankscope.cli.live.capture_result import CaptureResult, Missing, no_record
from rankscope.cli.live.live_run import LiveRun, poll, print_progress
from rankscope.cli.live.profile_progress import ProfileProgress
from rankscope.cli.live.standstill import Standstill
from rankscope.runs.control import MAX_STEPS, ControlAnswer, ControlRequest, read_answer
from rankscope.runs.paths import rank_dir

SETTLE_SECONDS: Final = 1.0
"""Wait after the last breakdown: the collectives of the same window are written a moment later."""
_ANEW: Final = "the job has been started anew in the meantime; ask again"


def capture_steps(live: LiveRun, request: ControlRequest, expected: list[int], *, until: float) -> CaptureResult:
    """Send the request and wait until ``until`` (monotonic seconds) for the profiles of the ``expected`` ranks."""
    watch = Standstill(live)
    with live.request(request) as mark_answered:
        print_progress(f"asked for {request.steps} steps of {ranks_text(expected)}")
        answer = poll(lambda: _answer(live, request), until=until, ranks=1)
        if answer is not None:
            mark_answered()
    if answer is None:
        reason = _unanswered(live, watch)
        print_progress(reason)
        return CaptureResult(
            request=request.id, accepted=None, reason=reason, attempt=live.attempt, missing=_all(expected, "no answer")
        )
    if live.follow(answer) and request.ranks is None:
        live.await_absent(None, until=until)
        expected = live.ranks
    if not answer.accepted or (steps := _steps_of(answer)) is None:
        reason = answer.reason or "no reason given" if not answer.accepted else "the answer makes no sense"
        print_progress(f"refused: {reason}")
        return CaptureResult(
            request=request.id, accepted=False, reason=reason, attempt=live.attempt, missing=_all(expected, "refused")
        )
    if answer.ranks is not None:
        expected = sorted(set(answer.ranks))
    print_progress(f"accepted: steps {steps[0]} to {steps[-1]} will be profiled by {ranks_text(expected)}")
    missing = _wait_for_profiles(live, expected, steps, until=until)
    missing_reason = missing[0].reason if missing else None
    if any(not live.has_ended(row.rank) for row in missing) and (standstill := watch.explained()) is not None:
        missing_reason = f"{missing_reason}: {standstill}"
    present = [rank for rank in expected if rank not in {row.rank for row in missing}]
    if request.ranks is None and live.absent:
        missing = sorted([*missing, *no_record(live.absent)], key=lambda row: row.rank)
        missing_reason = missing_reason or missing[0].reason
    if missing:
        print_progress(f"no complete profile of {ranks_text([row.rank for row in missing])}: {missing_reason}")
    return CaptureResult(
        request=request.id,
        accepted=True,
        reason=missing_reason,
        attempt=live.attempt,
        first_step=steps[0],
        last_step=steps[-1],
        ranks=present,
        missing=missing,
        traces=_traces(live, expected, steps),
        analysis=analyze_captured(live.reader, live.attempt, expected, steps),
        run_verdict=_run_verdict(live),
    )


def _run_verdict(live: LiveRun) -> Verdict | None:
    with suppress(InputError):
        return analyze_run(live.path, live.attempt).verdict
    return None


def _answer(live: LiveRun, request: ControlRequest) -> ControlAnswer | None:
    job_answer = read_answer(live.path, request.id)
    if job_answer is None and all(map(live.has_ended, live.ranks)) and (reason := _given_up(live, request)) is not None:
        return ControlAnswer(id=request.id, accepted=False, reason=reason, answered_unix_ns=0)
    return job_answer


def _steps_of(answer: ControlAnswer) -> range | None:
    # The answer is untrusted: every user with write access to the folder may have written it.
    first, last = answer.first_step, answer.last_step
    return range(first, last + 1) if first is not None and last is not None and first <= last < first + MAX_STEPS else None


def _given_up(live: LiveRun, request: ControlRequest) -> str | None:
    """Return why no answer will come from an attempt that is over; ``None`` if the next attempt may still answer."""
    last = live.reader.attempts()[-1:]
    if last == [live.attempt]:
        return "the job ended before it answered"
    about = live.reader.attempt(last[0]) if last else None
    if about is not None and about.start_unix_ns <= request.created_unix_ns:
        return None  # the next one has seen the request
    return _ANEW


def _unanswered(live: LiveRun, watch: Standstill) -> str:
    if live.reader.attempts()[-1:] != [live.attempt]:
        return f"no answer: {_ANEW}"
    if (standstill := watch.explained()) is not None:
        return f"no answer: {standstill}"
    if 0 in live.absent:
        return "no answer: rank 0, which answers, has left no record yet"
    return "no answer: the job records no profiles, or the clocks of rank 0's host and this one are far apart"


def _wait_for_profiles(live: LiveRun, expected: list[int], steps: range, *, until: float) -> list[Missing]:
    waiting = {rank: ProfileProgress(live, rank, steps) for rank in expected}
    left_out: dict[int, ProfileProgress] = {}
    reported_at = time.monotonic()

    def look() -> bool | None:
        nonlocal reported_at
        for rank, progress in tuple(waiting.items()):
            # Checked before the rows are read: if the rank has ended, all its rows are there.
            ended = live.has_ended(rank)
            if not progress.missing_steps():
                del waiting[rank]
            elif ended:
                return False
            elif progress.is_left_out():
                left_out[rank] = waiting.pop(rank)
        if waiting and time.monotonic() - reported_at > 10:
            reported_at = time.monotonic()
            print_progress(f"profiled by {len(expected) - len(waiting) - len(left_out)} of {len(expected)} ranks so far")
        return None if waiting else True

    if poll(look, until=until, ranks=len(expected)):
        time.sleep(SETTLE_SECONDS)
    missing = []
    for rank, progress in sorted((waiting | left_out).items()):
        info = live.info(rank)
        if unrecorded := progress.missing_in_all_records():
            end_reason = None if info is None else info.end_reason
            missing.append(Missing(rank=rank, reason=_why(unrecorded, end_reason, steps, left_out=rank in left_out)))
    return missing


def _why(unrecorded: list[int], end_reason: str | None, steps: range, *, left_out: bool) -> str:
    steps_text = "none of the steps was" if len(unrecorded) == len(steps) else f"step {unrecorded[0]} was not"
    if end_reason is not None:
        return f"{steps_text} profiled; the rank ended ({end_reason})"
    if left_out:
        return f"{steps_text} profiled, and the rank is past it: it left the window out, and the job's stderr says why"
    return f"{steps_text} profiled in time; the job's stderr says so when a window is left out"


def _all(ranks: list[int], reason: str) -> list[Missing]:
    return [Missing(rank=rank, reason=reason) for rank in ranks]


def _traces(live: LiveRun, ranks: list[int], steps: range) -> list[str]:
    return [
        os.fspath(path.relative_to(live.path))
        for rank in ranks
        for path in sorted((rank_dir(live.path, live.attempt, rank) / "traces").glob(f"window-{steps.start:09d}*"))
    ]
