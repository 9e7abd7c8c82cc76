"""``rankscope capture``."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import click
import msgspec

from rankscope.cli.live.capture_result import CaptureResult
from rankscope.cli.live.live_run import LiveRun
from rankscope.cli.live.request_id import named_request, parse_request_id, was_answered
from rankscope.cli.selection import RANKS
from rankscope.cli.terminal import INPUT_PATH, Finite, format_option, print_json, use_color, width
from rankscope.runs.control import MAX_STEPS, new_request


@click.command(
    epilog="""
\b
Examples:
  rankscope capture RUN                         three of the next steps
  rankscope capture RUN --steps 5 --keep-trace  keep the raw traces, too
  rankscope capture RUN --ranks 0,8-15 --note "slow since the switch went"
  rankscope capture RUN --flight-recorder       who waits in a hung job

\b
The request is a file in RUN/control, so every user with write access there
can make one.
"""
)
@click.argument("run", metavar="RUN", type=INPUT_PATH)
@click.option(
    "--steps", type=click.IntRange(1, MAX_STEPS), default=3, show_default=True, help="Profile this many steps in a row."
)
@click.option("--ranks", type=RANKS, help="Ranks to profile, such as 0,3-5.  [default: all]")
@click.option("--keep-trace", is_flag=True, help="Also keep the raw Kineto traces, in RUN/attempts/*/ranks/*/traces.")
@click.option(
    "--flight-recorder",
    is_flag=True,
    help="Instead of profiling, have every rank write what its Flight Recorder holds, in RUN/attempts/*/flight.",
)
@click.option("--wait", type=Finite(0, 86_400), default=120.0, show_default=True, help="Seconds to wait for the result at most.")
@click.option("--note", help="Reason, stored with the request.")
@click.option(
    "--request",
    "request_id",
    type=parse_request_id,
    metavar="ID",
    help="Make the request under this id, or keep waiting for it: the job carries out one id only once.",
)
@format_option
def capture(
    *,
    run: Path,
    steps: int,
    ranks: list[int] | None,
    keep_trace: bool,
    flight_recorder: bool,
    wait: float,
    note: str | None,
    request_id: str | None,
    format_: str,
) -> int:
    """Have a live run profile some of its next steps, and print the result.

    All ranks profile the same steps, a few seconds ahead. Exit status 1: the run refused, or the result is incomplete after
    --wait seconds; what has arrived is printed.
    """
    answered = request_id is not None and was_answered(run, request_id)
    live = LiveRun(run, silent_seconds=None if flight_recorder or answered else max(300.0, wait), may_be_over=answered)
    until = time.monotonic() + wait
    if not answered:
        live.await_absent(ranks, until=until)
    expected = live.chosen(ranks)
    named = None if ranks is None else expected
    if note is not None:
        note = note.encode(errors="replace").decode()[:500]
    if flight_recorder:
        from rankscope.cli.live.dump_request import dump_recorders

        request = named_request(new_request("dump", ranks=named, note=note), request_id)
        dumps = dump_recorders(live, request, expected, until=until)
        _print(dumps, dumps.text(), format_)
        return 1 if dumps.missing else 0
    from rankscope.cli.live.capture_request import capture_steps

    request = new_request("capture", steps=steps, ranks=named, keep_trace=keep_trace, note=note)
    request = named_request(request, request_id)
    result = capture_steps(live, request, expected, until=until)
    _print(result, _text(result), format_)
    return 0 if result.complete else 1


def _text(result: CaptureResult) -> str:
    if result.analysis is None:
        return ""
    from rankscope.analysis.report.terminal import render_text
    from rankscope.analysis.result.text import wrapped
    from rankscope.base.text import step_range

    parts = []
    if result.run_verdict is not None:
        kind = result.run_verdict.kind.replace("_", " ").upper()
        parts.append("\n".join([f"THE RUN SO FAR: {kind}", *wrapped(result.run_verdict.summary, width())]))
        parts.append(f"WHAT THE WINDOW ADDS ({step_range((result.first_step or 0, (result.last_step or 0) + 1))})")
    run, steps = shlex.quote(result.analysis.source.path), f"{result.first_step}:{(result.last_step or 0) + 1}"
    command = f"rankscope analyze {run} --steps {steps}"
    parts.append(render_text(result.analysis, width=width(), color=use_color(), command=command))
    if result.traces:
        parts.append("\n".join(("traces", *(f"  {path}" for path in result.traces))))
    return "\n\n".join(parts)


def _print(result: msgspec.Struct, text: str, format_: str) -> None:
    if format_ == "json":
        print_json(result)
    elif text:
        click.echo(text, color=True)
