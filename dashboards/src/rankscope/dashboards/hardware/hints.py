"""Notes on the source of GPU readings and their gaps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rankscope.analysis.result.text import first_of
from rankscope.dashboards.data.events import HardwareEvents
from rankscope.dashboards.data.hardware import ORIGIN, Hardware, SampledGpu
from rankscope.dashboards.model.line import Piece, Span, badge
from rankscope.dashboards.model.page import Block, Items, Text
from rankscope.dashboards.words.wording import count, utc_time

STALE_NS: Final = 60 * 10**9
"""Age in ns from which a GPU's last sample is reported as stale, relative to newer records."""

_NAMED: Final = 8


def gpu_hints(hardware: Hardware, events: HardwareEvents, steps: tuple[int, int] | None) -> list[Block]:
    """Return notes on source and gaps of the readings, the source first. Without samples, explain how to get them."""
    gpus, index = hardware.gpus, hardware.index
    if not gpus:
        return [
            Text(f"This run has no GPU readings: {index.why_none or 'there are no samples'}."),
            Text(
                [
                    "Start ",
                    Span("rankscope exporter", "code"),
                    " on every host, then the job with ",
                    Span("rankscope run", "code"),
                    ": it takes samples by itself. ",
                    Span("--exporter-url URL", "code"),
                    " names an exporter elsewhere; ",
                    Span("--no-hardware", "code"),
                    " switches it off.",
                ],
                "help",
            ),
        ]
    first = min((gpu.first_unix_ns for gpu in gpus if gpu.first_unix_ns), default=None)
    last = max((gpu.last_unix_ns for gpu in gpus if gpu.last_unix_ns), default=None)
    hosts = len({gpu.host for gpu in gpus})
    shown = "" if steps is None else f" Shown: steps {steps[0]:,} to {steps[1]:,}."
    where = f"{count(len(gpus), 'GPU')} on {count(hosts, 'host')}"
    source = f"Source: {ORIGIN}. {where}, {utc_time(first)} to {utc_time(last)}.{shown}"
    simulated = any(gpu.simulated for gpu in gpus)
    mark = badge("Simulated GPUs", tone="simulated", title="These readings are simulated")
    line: list[Piece] = [mark, f" {source}"] if simulated else [source]
    sentences = list(_hint_sentences(hardware, events, last))
    return [Text(line, "help"), *([Items(sentences, "help")] if sentences else [])]


def _hint_sentences(hardware: Hardware, events: HardwareEvents, last: int | None) -> Iterator[str]:
    gpus, index = hardware.gpus, hardware.index
    if index.unsampled_ranks:
        yield f"No samples of the GPUs of {_ranks(index.unsampled_ranks)}: rankscope exporter must run on their hosts, too."
    yield from (f"Some samples are missing: {reason}." for reason in index.missing)
    stale = [gpu for gpu in gpus if last is not None and gpu.last_unix_ns is not None and last - gpu.last_unix_ns > STALE_NS]
    if stale:
        yield f"Stale: the newest sample of {_gpus(stale)} is more than a minute older than that of the others."
    clock = hardware.clock
    if last is not None and clock is not None and int(clock.starts_ns[-1]) - last > STALE_NS:
        yield f"Stale: the newest sample of all is of {utc_time(last)}, the last step began {utc_time(int(clock.starts_ns[-1]))}."
    if mig_devices := [gpu for gpu in gpus if gpu.parent_uuid is not None]:
        yield (f"{count(len(mig_devices), 'MIG device')}: clock, temperature and power are those of the whole GPU.")
    if not any(gpu.throttle_samples for gpu in gpus):
        yield "Reasons for reduced clocks are not known: no sample contains them."
    if clock is None:
        yield "No step has a time (yet); the axis is the time of day."
    elif index.clock_host is not None and len({gpu.host for gpu in gpus}) > 1:
        yield f"Steps are placed by the clock of {index.clock_host}; hosts with other clocks are off by as much as these differ."
    if events.left_out:
        yield f"{events.left_out:,} more events in this run are left out."


def _ranks(ranks: list[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {first_of(ranks, _NAMED)}"


def _gpus(gpus: list[SampledGpu]) -> str:
    return first_of([f"{gpu.host} GPU {gpu.gpu_uuid if gpu.index is None else gpu.index}" for gpu in gpus], _NAMED)
