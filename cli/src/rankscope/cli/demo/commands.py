"""``rankscope demo``."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from rankscope.analysis.report.terminal import render_text
from rankscope.base.errors import InputError, MissingError
from rankscope.cli.demo.faults import Fault, FaultType
from rankscope.cli.demo.services import Services
from rankscope.cli.demo.story import Story, StoryRow, announce, run_story
from rankscope.cli.terminal import format_option, print_json, use_color, width
from rankscope.runs.named import DEFAULT_FOLDER


@click.command(
    epilog="""
\b
Faults:
  input:R       rank R's data loader is slow (the default is input:2)
  host:R        rank R's Python code pauses in the forward pass
  backward:R    rank R pauses late in the backward pass
  imbalance:R   rank R gets longer sequences
  none          no fault: no rank may be named, no alert sent
"""
)
@click.option("--fault", type=FaultType(), default="input:2", show_default=True, metavar="KIND:RANK", help="What to plant.")
@click.option("--once", is_flag=True, help="Headless: check each part, print the table, exit 0 only if all are ok.")
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    help="Folder of the run; must not exist.  [default: rankscope-runs/demo-FAULT-TIME]",
)
@format_option
def demo(*, fault: Fault, once: bool, run_dir: Path | None, format_: str) -> int:
    """Train for real with one planted straggler and watch every part of rankscope find it.

    Four processes train a small transformer with DistributedDataParallel; the exporter, the recorder, the analysis, the page
    and an alert webhook do their work beside them. Without --once it prints the addresses and stays until Ctrl-C.
    """
    _need_torch()
    run_dir = _choose_run_dir(run_dir, fault)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    started = time.monotonic()

    def say(text: str) -> None:
        click.echo(f"[{time.monotonic() - started:5.1f} s] {text}", err=True)

    logs = Path(tempfile.mkdtemp(prefix="rankscope-demo-logs-"))
    ok = False
    try:
        with Services(logs) as services:
            story = Story(run_dir=run_dir, fault=fault, services=services, say=say)
            run_story(story)
            _print_result(story, format_)
            ok = all(part.ok for part in story.parts)
            if not once:
                click.echo("\nLook at it:", err=True)
                announce(story)
                click.echo("\nCtrl-C ends it and leaves nothing running.", err=True)
                _stay()
                say("stopping ...")
    finally:
        if ok:
            shutil.rmtree(logs, ignore_errors=True)
        else:
            click.echo(f"What each part printed is in {logs}", err=True)
    return 0 if ok else 1


def _need_torch() -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise MissingError("the demo trains a real model and needs torch >= 2.6: pip install torch")


def _choose_run_dir(run_dir: Path | None, fault: Fault) -> Path:
    if run_dir is not None:
        if run_dir.exists():
            raise InputError(run_dir, "exists already; name a new folder for the demo's run")
        return run_dir.absolute()
    root = Path(DEFAULT_FOLDER).absolute()
    if not os.access(root if root.exists() else root.parent, os.W_OK):
        root = Path(tempfile.mkdtemp(prefix="rankscope-runs-"))
    name = f"demo-{fault}-{datetime.now().astimezone():%Y%m%d-%H%M%S}".replace(":", "-")
    return root / name


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Turn a termination signal into the way out that Ctrl-C takes, so that nothing stays behind."""
    del number, frame
    raise KeyboardInterrupt


def _stay() -> None:
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        return


def _print_result(story: Story, format_: str) -> None:
    ok = all(part.ok for part in story.parts)
    if format_ == "json":
        verdict = story.analysis.verdict if story.analysis else None
        document = {"parts": story.parts, "ok": ok, "verdict": verdict, "urls": story.urls, "run": str(story.run_dir)}
        print_json(document)
        sys.stdout.buffer.flush()
        return
    if story.analysis is not None:
        command = f"rankscope analyze {shlex.quote(str(story.run_dir))}"
        click.echo("\n" + render_text(story.analysis, width=width(), color=use_color(), command=command), color=True)
    click.echo("\n" + "\n".join(_row(part) for part in story.parts), color=True)


def _row(part: StoryRow) -> str:
    mark = "ok" if part.ok else "FAILED"
    if use_color():
        mark = click.style(f"{mark:6}", fg="green" if part.ok else "red", bold=True)
    return f"  {part.name:12} {mark:6}  {part.detail}"
