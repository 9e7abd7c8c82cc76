"""``rankscope schema``."""

from __future__ import annotations

import click
import msgspec

from rankscope.alerts.deliver.outbox_command import Listings
from rankscope.alerts.deliver.trial import Trial
from rankscope.alerts.replay.replay_result import Replay
from rankscope.alerts.rules.explain import Explanation
from rankscope.alerts.watch.announcements import FindingRecord
from rankscope.analysis.compare.compare_result import CompareResult
from rankscope.analysis.hang.hang_result import HangReport
from rankscope.analysis.perfetto.export_result import ExportResult
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.result.stored import StoredVerdict
from rankscope.analysis.whatif.whatif_result import WhatIf
from rankscope.cli.live.capture_result import CaptureResult, DumpResult
from rankscope.runs.control import ControlAnswer, ControlRequest
from rankscope.runs.durations import DurationBlock
from rankscope.runs.ras import RasAnswer
from rankscope.runs.records import (
    AttemptInfo,
    CollectiveRecord,
    HardwareSample,
    KernelRecord,
    PlannedWindow,
    RankInfo,
    RunInfo,
    StackSamples,
    StepBreakdown,
    StepEvent,
    StepRecord,
)

SCHEMAS: dict[str, type[msgspec.Struct]] = {
    "analysis": Analysis,
    "verdict": StoredVerdict,
    "hang": HangReport,
    "compare": CompareResult,
    "whatif": WhatIf,
    "run": RunInfo,
    "attempt": AttemptInfo,
    "rank": RankInfo,
    "steps": StepRecord,
    "events": StepEvent,
    "windows": StepBreakdown,
    "collectives": CollectiveRecord,
    "kernels": KernelRecord,
    "stacks": StackSamples,
    "durations": DurationBlock,
    "plan": PlannedWindow,
    "gpu": HardwareSample,
    "ras": RasAnswer,
    "findings": FindingRecord,
    "request": ControlRequest,
    "answer": ControlAnswer,
    "capture": CaptureResult,
    "dump": DumpResult,
    "export": ExportResult,
    "replay": Replay,
    "explain": Explanation,
    "outbox-list": Listings,
    "test-webhook": Trial,
}


@click.command(epilog=f"NAME is one of {', '.join(SCHEMAS)}.")
@click.argument("name", type=click.Choice(list(SCHEMAS)), metavar="NAME")
def schema(name: str) -> None:
    """Print the JSON Schema of a record of the run directory, of a request to a running job, or of a verb's result."""
    click.echo(msgspec.json.format(msgspec.json.encode(msgspec.json.schema(SCHEMAS[name])), indent=2).decode())
