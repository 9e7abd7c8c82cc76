"""``rankscope run``: run a job with the recorder attached, and print its verdict."""

from __future__ import annotations

import secrets
import shlex
import sys
import time
from contextlib import suppress
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import click

from rankscope.base.errors import RankscopeError
from rankscope.base.options import Size
from rankscope.base.text import one_line
from rankscope.cli.selection import share
from rankscope.cli.terminal import price_options, use_color, width
from rankscope.profiler.helper.sampling.exporter_page import parse_target
from rankscope.profiler.launch import DRAIN_SECONDS, LaunchOptions, LaunchResult, launch
from rankscope.profiler.settings import BUDGET, EXPORTER_URL, STACKS_SECONDS, WINDOW_FIRST, WINDOW_STEPS, default_spool_dir
from rankscope.runs.named import DEFAULT_FOLDER
from rankscope.runs.paths import SPOOL_DIR, attempt_dir
from rankscope.runs.reader import RunReader


def _exporter_url(_context: click.Context, _option: click.Parameter, url: str) -> str | None:
    """Check the URL; an empty one (``--exporter-url ''``) means no exporter."""
    if not url:
        return None
    try:
        parse_target(url)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return url


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="""
\b
Examples:
  rankscope run -- torchrun --nproc-per-node 8 train.py --lr 3e-4
  rankscope run --run-dir /shared/runs/bert-7 -- srun python train.py
  rankscope run --budget 0.5% -- python train.py

The training script needs no change and its output is left alone; the verdict goes to stderr. The exit status is the job's.
""",
)
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    help="Folder to record into; every rank must see it.  [default: rankscope-runs/NAME-TIME]",
)
@click.option("--name", help="Name of the run.  [default: the script's name]")
@click.option(
    "--spool-dir",
    type=click.Path(),
    help=f"Folder where the node's exporter picks up the ranks' metrics.  [default: {SPOOL_DIR}, if it is there]",
)
@click.option(
    "--budget",
    type=share,
    default=f"{BUDGET:.0%}",
    show_default=True,
    metavar="SHARE",
    help="Share of the step time that recording may cost, 1% or 0.01: profiled windows come as often as it allows.",
)
@click.option(
    "--window-first",
    type=click.IntRange(min=1),
    default=WINDOW_FIRST,
    show_default=True,
    help="First profiled step; on a GPU later, when the budget covers it, unless --window-every is given.",
)
@click.option(
    "--window-every",
    type=click.IntRange(min=0),
    help="Steps from one profiled window to the next; 0 for a single window.  [default: as the budget allows]",
)
@click.option(
    "--window-steps",
    type=click.IntRange(min=0),
    default=WINDOW_STEPS,
    show_default=True,
    help="Steps per window; 0 switches the profiler off.",
)
@click.option(
    "--keep-traces",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Keep the raw traces of the last N windows of each rank.",
)
@click.option(
    "--retain",
    "retain_bytes",
    type=Size(or_all=True),
    default="4GiB",
    show_default=True,
    help="How much each rank may keep; then its oldest records are removed, steps last. `all` removes none.",
)
@click.option(
    "--exporter-url",
    default=EXPORTER_URL,
    show_default=True,
    callback=_exporter_url,
    metavar="URL",
    help="Page of each node's exporter, from which one rank of the node samples its GPUs.",
)
@click.option("--no-hardware", is_flag=True, help="Take no hardware samples.")
@click.option(
    "--otlp-every",
    type=click.IntRange(min=1),
    metavar="N",
    help="Send every Nth step of all ranks as a trace over OTLP, to where the OTEL_EXPORTER_OTLP_* variables say.",
)
@click.option("--no-stacks", is_flag=True, help="Take no samples of the ranks' Python stacks.")
@click.option(
    "--memory-snapshot",
    is_flag=True,
    help="Record the allocations of GPU memory, and keep a snapshot when a rank runs out of it. Costs some time per allocation.",
)
@click.option(
    "--nccl-inspector",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Record how long each collective takes on the GPUs, by NVIDIA's plugin libnccl-profiler-inspector.so (NCCL 2.28 or "
    "later). Names the slow rank where ranks wait inside streams: FSDP, tensor and pipeline parallelism.",
)
@click.option(
    "--flight-recorder-times",
    is_flag=True,
    help="The same, by torch's Flight Recorder: one more CUDA event per collective, and a dump every few seconds.",
)
@price_options("Price the loss in money.")
@click.option("--simulated", is_flag=True, help="The GPU readings of this node are simulated: say so wherever the run is shown.")
@click.option("--verdict/--no-verdict", default=True, show_default=True, help="Print the verdict when the job has ended.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND...")
def run(
    *,
    run_dir: Path | None,
    name: str | None,
    spool_dir: str | None,
    exporter_url: str | None,
    no_hardware: bool,
    no_stacks: bool,
    nccl_inspector: Path | None,
    flight_recorder_times: bool,
    verdict: bool,
    command: tuple[str, ...],
    **options: Any,
) -> int:
    """Run a training job with the recorder attached, without changing its code.

    COMMAND is what you would type without rankscope: torchrun, python, srun, accelerate launch.
    """
    if command[0].startswith("-"):
        raise click.NoSuchOption(command[0], possibilities=_similar(command[0]))
    if nccl_inspector is not None and flight_recorder_times:
        raise click.UsageError("--nccl-inspector and --flight-recorder-times record the same; use one of them")
    name = name or _default_name(command)
    result = launch(
        command,
        LaunchOptions(
            run_dir=run_dir or _default_run_dir(name),
            name=name,
            spool_dir=spool_dir or default_spool_dir(),
            exporter_url=None if no_hardware else exporter_url,
            stacks_seconds=None if no_stacks else STACKS_SECONDS,
            nccl_inspector=nccl_inspector,
            flight_recorder_times=flight_recorder_times,
            **options,
        ),
    )
    for snapshot in result.memory_snapshots:
        click.echo(
            f"rankscope: a GPU ran out of memory: {one_line(str(snapshot))} shows what was allocated; open it on "
            "https://docs.pytorch.org/memory_viz",
            err=True,
        )
    if verdict:
        _print_verdict(result)
    return result.status


def _default_name(command: tuple[str, ...]) -> str:
    script = next((Path(word).stem for word in command if word.endswith(".py")), Path(command[0]).name)
    return script or "run"


def _default_run_dir(name: str) -> Path:
    """Return a folder that is unique, even for jobs of the same name that start in the same second."""
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)[:80].strip("-.") or "run"
    return Path(DEFAULT_FOLDER) / f"{safe}-{datetime.now().astimezone():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _similar(option: str) -> list[str]:
    options = [name for parameter in run.params if isinstance(parameter, click.Option) for name in parameter.opts]
    return get_close_matches(option.partition("=")[0], options)


_BY_HAND: Final = """\
To record it, mark the steps in the script (docs/recorder.md):
    from rankscope.profiler.step import StepProfiler
    with StepProfiler("runs/mine") as prof:
        for batch in loader:
            ...
            prof.step()"""


def _print_verdict(result: LaunchResult) -> None:
    if not result.ranks:
        if result.status in (126, 127):
            return  # the job did not start, which is already reported
        why = (
            f"the job ended with status {result.status} before its first optimizer step"
            if result.status
            else "the job took no optimizer step under torch, or its Python could not load the recorder "
            "(python -I, -E and -S keep it out), or another job records there"
        )
        by_script = not result.unwritten and not result.status and bool(result.unrecorded)
        if result.unwritten or by_script:
            why = "; ".join(result.unwritten or result.unrecorded)
        click.echo(f"rankscope: nothing was recorded in {one_line(str(result.run_dir))}: {why}.", err=True)
        if by_script:
            click.echo(_BY_HAND, err=True)
        return
    last = max(attempt for attempt, _ in result.ranks)
    if (last, 0) not in result.ranks:
        click.echo(
            f"rankscope: recorded in {one_line(str(result.run_dir))}; the launcher of rank 0 prints the verdict.", err=True
        )
        return
    # A failed analysis must not change the exit status, which is the job's.
    try:
        from rankscope.analysis.engine import analyze
        from rankscope.analysis.report.terminal import render_text
        from rankscope.analysis.result.stored import store_verdict

        _wait_for_other_launchers(result, last)
        began_ns = time.time_ns()
        # Another launcher may have added an attempt meanwhile; the verdict that is stored is that of the last one.
        is_last = last == max(RunReader(result.run_dir).attempts(), default=last)
        analysis = analyze([result.run_dir if is_last else attempt_dir(result.run_dir, last)])
        command = f"rankscope analyze {shlex.quote(str(result.run_dir))}"
        text = render_text(analysis, width=width(), color=use_color(sys.stderr), command=command)
        if is_last:
            with suppress(OSError):  # a full disk: the dashboard analyses the run itself
                store_verdict(result.run_dir, analysis, as_of_unix_ns=began_ns)
    except Exception as error:  # noqa: BLE001  # see above
        kind = "" if isinstance(error, RankscopeError) else f"{type(error).__name__}: "
        click.echo(f"rankscope: recorded in {result.run_dir}, but there is no verdict: {kind}{error}", err=True)
        return
    click.echo(text, err=True, color=True)


def _wait_for_other_launchers(result: LaunchResult, attempt: int) -> None:
    """Wait, at most ``DRAIN_SECONDS``, until the ranks of the launchers on other nodes have an end, too."""
    reader = RunReader(result.run_dir)
    info = reader.attempt(attempt)
    own_ranks = {rank for number, rank in result.ranks if number == attempt}
    others = set(range(info.world_size if info is not None else 0)) - own_ranks
    deadline = time.monotonic() + DRAIN_SECONDS
    while others := {rank for rank in others if (row := reader.rank(attempt, rank)) is None or row.end_reason is None}:
        if time.monotonic() > deadline:
            click.echo(
                f"rankscope: {len(others)} ranks of other launchers have not ended; the verdict is without their last steps",
                err=True,
            )
            return
        time.sleep(0.2)
