"""The exporter without some caches between a reading and the bytes of /metrics: ``page_caches_job.py NAME[,NAME…] ARGUMENT…``.

Each cache is removed by replacing the method that uses it, before the processes of the GPUs are forked.
"""

# ruff: noqa: SLF001  caches are private

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

from rankscope.base import exposition
from rankscope.cli.start import main
from rankscope.exporter.fleet import wire
from rankscope.exporter.loop import CollectorState
from rankscope.exporter.pages import page
from rankscope.exporter.simulated import SimulatedFleet
from rankscope.exporter.spool import file, incremental_parse, reading
from rankscope.exporter.spool.folder import SpoolFolder
from rankscope.exporter.web import rendered

EVERY: Final = ("lines", "points", "rendered", "templates", "changes", "parsed_files")
RANKS: Final = 8


def without_changes() -> None:
    """Make every GPU's process send all its readings in every pass."""
    wire.DeltaEncoder.encode = lambda _self, sample, took_s: wire.Sampled(sample, took_s)  # type: ignore[method-assign,assignment]


def without_parsed_files() -> None:
    """Parse an unchanged file of a rank in every pass."""
    load = reading.Spool._load

    def parsed(self: reading.Spool, folder_fd: int, spool_file: Any, now_s: float) -> Any:
        before, result = self._cache.get(spool_file.name), load(self, folder_fd, spool_file, now_s)
        if result is not before:
            return result
        content, _ = file.read_regular(spool_file.name, folder_fd)
        return dataclasses.replace(result, outcome=file.parse(content))

    reading.Spool._load = parsed  # type: ignore[method-assign,assignment]


def without_templates() -> None:
    """Parse a file of a rank in which only values changed as if it were new."""
    incremental_parse.SpoolTemplate.of = classmethod(lambda *_: None)  # type: ignore[method-assign,assignment]


def without_lines() -> None:
    """Render every line for every page, from its kept labels."""
    render = exposition._line

    def line(point: exposition.Point, family: exposition.Family) -> str:
        if not point.prefix:
            render(point, family)
            point.line = ""
        return f"{point.prefix}{exposition.number(point.value)}\n"

    exposition._line = line


def without_points() -> None:
    """Create the points, and render their labels, for every page."""
    exposition.PointSource._of_same_series = lambda *_: None  # type: ignore[method-assign]


def without_rendered() -> None:
    """Render, and compress, a page for every request."""

    async def get(
        self: rendered.RenderedPages,
        key: Hashable,
        render: Callable[[], rendered.Rendered],
        *,
        compressed: bool = False,
    ) -> rendered.Rendered:
        del key
        make = (lambda: rendered._compressed(render())) if compressed else render
        return await asyncio.get_running_loop().run_in_executor(self._thread, make)

    rendered.RenderedPages.get = get  # type: ignore[method-assign]


def rank_text(rank: int, second: int) -> str:
    """Return the metrics of a rank: 20 values, of which a third change, and a histogram."""
    labels = f'run="run",rank="{rank}",slot="0"'
    lines = ["# TYPE rank_info gauge", f'rank_info{{{labels},run_id="id-run",gpu_uuid="GPU-{rank}"}} 1']
    for index in range(20):
        name, value = f"rank_value_{index}", 1000 * rank + (second if index % 3 == 0 else 0) + index / 7
        lines += [f"# HELP {name} A value.", f"# TYPE {name} gauge", f"{name}{{{labels}}} {value!r}"]
    name = "rank_step_duration_seconds"
    lines += [f"# HELP {name} Steps.", f"# TYPE {name} histogram"]
    bounds = [str(0.05 * 2**power) for power in range(12)]
    lines += [f'{name}_bucket{{{labels},le="{bound}"}} {second * (place + 1) // 12}' for place, bound in enumerate(bounds)]
    lines += [f'{name}_bucket{{{labels},le="+Inf"}} {second}', f"{name}_sum{{{labels}}} {0.3 * second}"]
    return "\n".join([*lines, f"{name}_count{{{labels}}} {second}"]) + "\n"


def write_ranks(folder: Path, second: int) -> None:
    """Write the files of all ranks, replacing them as ranks do."""
    for rank in range(RANKS):
        (folder / ".new").write_text(rank_text(rank, second))
        (folder / ".new").replace(folder / f"{rank}.prom")


def page_cpu_ms(pages: int) -> dict[str, float]:
    """Return the CPU of the spool's pass, and of pages with new and with unchanged GPU values: medians in ms, without waiting."""
    folder = Path(tempfile.mkdtemp())
    spool = reading.Spool(SpoolFolder(folder), stale_s=60, forget_s=600)
    snapshot: Any = None
    ranks = cast("Any", SimpleNamespace(name="spool", latest=lambda: snapshot))
    moving, still = (
        page.MetricsPage("node", SimulatedFleet("8", interval_s=interval_s), spool=ranks) for interval_s in (0.001, 3600)
    )
    milliseconds: dict[str, list[float]] = {"spool_pass": [], "page_of_new_gpu_values": [], "page_of_the_same_gpu_values": []}
    for second in range(pages):
        write_ranks(folder, second)
        began = time.thread_time()
        sample = spool.read()
        read = time.thread_time()
        snapshot = CollectorState(sample, fresh=True, ok=True, age_s=0, duration_s=0, reason=None)
        moving.render()
        first = time.thread_time()
        still.render()
        spans = (read - began, first - read, time.thread_time() - first)
        for values, span in zip(milliseconds.values(), spans, strict=True):
            values.append(1000 * span)
    shutil.rmtree(folder)
    return {name: round(statistics.median(values[pages // 10 :]), 3) for name, values in milliseconds.items()}


if __name__ == "__main__":
    for name in filter(None, sys.argv[1].split(",")):
        globals()[f"without_{name}"]()
    if sys.argv[2] == "page":
        print(json.dumps(page_cpu_ms(int(sys.argv[3]))))
    else:
        sys.argv = ["rankscope", *sys.argv[2:]]
        main()
