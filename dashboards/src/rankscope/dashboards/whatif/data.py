"""What-if of a run: the computed answer, counterfactuals chosen in the address, and the value of shorter steps."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.whatif.outcome import CostTerms
from rankscope.analysis.whatif.run_answer import AnswerGraph, whatif_with_graph
from rankscope.analysis.whatif.step_scenarios import Combinations, combinations, read_combinations
from rankscope.analysis.whatif.whatif_result import Effect, WhatIf
from rankscope.base.errors import InputError
from rankscope.base.process import collector_paused
from rankscope.base.text import shortened
from rankscope.dashboards.charts.causes import CAUSES
from rankscope.dashboards.data.cached_files import read_json
from rankscope.dashboards.data.progress import OnProgress, Progress
from rankscope.dashboards.model.state import host_item
from rankscope.dashboards.words.inert import inert_record
from rankscope.runs.named import NamedRun
from rankscope.runs.reader import RunReader

ANSWER: Final = "whatif.json"


class WhatIfAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What-if result, and the terms in which hours and money are counted."""

    result: WhatIf
    accelerated: bool
    """True if ranks run on accelerators, so that lost time is GPU time."""
    price_per_gpu_hour: float | None
    """Price recorded with the run."""
    currency: str | None
    made_unix_ns: int
    """Time at which the run was read; later records are not included."""


@dataclass(frozen=True, slots=True)
class StepRecords:
    """Step records of an undamaged run with ``TABLE_METRICS``."""

    table: StepTable
    read_unix_ns: int


@collector_paused()
def make_answer(run: Path, folder: Path, on_progress: OnProgress) -> None:
    """Simulate the last attempt of ``run`` and write the answer into ``folder``. Raises ``InputError``, and ``OSError`` if it
    cannot write.
    """
    write_answer(answer_of(run, on_progress), folder)


def answer_of(run: Path, on_progress: OnProgress, records: StepRecords | None = None) -> WhatIfAnswer:
    """Simulate the last attempt of ``run``. Raises ``InputError``. ``records``: step records that have been read already."""
    now = time.time_ns() if records is None else records.read_unix_ns
    reader = RunReader(run)
    attempts = reader.attempts()
    infos = reader.infos(attempts[-1]) if attempts else {}
    result, _ = _simulated(run, on_progress, None if records is None else records.table)
    return WhatIfAnswer(
        result=result,
        accelerated=any(info.device_kind != "cpu" for info in infos.values()),
        price_per_gpu_hour=reader.info.price_per_gpu_hour,
        currency=reader.info.currency,
        made_unix_ns=now,
    )


def write_answer(answer: WhatIfAnswer, folder: Path) -> None:
    """Write what ``read_answer`` reads. Raises ``OSError``."""
    (folder / ANSWER).write_bytes(msgspec.json.encode(inert_record(answer)))


@collector_paused()
def make_combinations(run: Path, folder: Path, on_progress: OnProgress) -> None:
    """Write the combinations of parts that the last attempt of ``run`` allows into ``folder``. Raises as ``make_answer``.

    They take as long as the answer, so they are made only when a viewer removes several parts together.
    """
    _, graph = _simulated(run, on_progress)
    if graph is not None:
        on_progress(Progress("what-if: simulating combinations"))
        combinations(graph.causes, graph.ranks, graph.combined).write(folder)


def _simulated(run: Path, on_progress: OnProgress, table: StepTable | None = None) -> tuple[WhatIf, AnswerGraph | None]:
    on_progress(Progress(SIMULATING))
    return whatif_with_graph(
        NamedRun(run, None),
        CostTerms(accelerated=True, world_size=1),
        lambda done, of: on_progress(Progress(f"{SIMULATING}: reading ranks", done, of)),
        table=table,
    )


SIMULATING: Final = "simulating the run without its stragglers"


def read_answer(folder: Path) -> WhatIfAnswer:
    """Read the answer that ``write_answer`` wrote. Raises ``InputError``."""
    return read_json(folder / ANSWER, WhatIfAnswer, "the cached what-if")


def cached_combinations(folder: Path) -> Combinations | None:
    """Read what ``make_combinations`` wrote; ``None``: the run allows none. Raises ``InputError``."""
    try:
        return read_combinations(folder)
    except (OSError, ValueError) as error:
        raise InputError(folder, f"the cached what-if cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class Removable:
    """One removable item of the what-if."""

    item: str
    """Name in the address, such as ``rank:3``."""
    kind: str
    label: str
    effect: Effect


def removables(result: WhatIf) -> list[Removable]:
    """Return all removable items of an answer, within each kind by slowdown, largest first."""
    phases = result.source.evidence == "steps"
    return [
        *(Removable(f"rank:{row.rank}", "rank", f"rank {row.rank}", row) for row in result.by_rank),
        *(Removable(host_item(row.host), "host", f"host {shortened(row.host, _HOST_LETTERS)}", row) for row in result.by_host),
        *(Removable(f"stage:{row.stage}", "stage", f"stage {row.stage}", row) for row in result.by_stage),
        *(Removable(f"cause:{row.cause}", "cause", CAUSES[row.cause].label, row) for row in result.by_cause),
        *(Removable(f"op:{row.op}", "phase" if phases else "operation", row.op.replace("_", " "), row) for row in result.by_op),
    ]


_HOST_LETTERS: Final = 24


HOURS_A_WEEK: Final = 168


@dataclass(frozen=True, slots=True)
class WeekCost:
    """Cost of a week of this job."""

    step_seconds: float
    """Measured step time: mean over all steps, the rare ones included."""
    gpu_hours: float | None
    """Per week; ``None`` for ranks on CPUs without a price."""
    price_per_gpu_hour: float | None
    currency: str

    def gpu_hours_of(self, seconds: float) -> float | None:
        """Return the GPU-hours per week that ``seconds`` of each typical step take."""
        return None if self.gpu_hours is None else self.gpu_hours * seconds / self.step_seconds

    def money_of(self, seconds: float) -> float | None:
        """Return the cost per week of ``seconds`` of each step, in ``currency``."""
        hours = self.gpu_hours_of(seconds)
        return None if hours is None or self.price_per_gpu_hour is None else hours * self.price_per_gpu_hour


def week_cost_of(answer: WhatIfAnswer, *, price: float | None = None, currency: str | None = None) -> WeekCost:
    """Return the cost of a week of an answer that is ``ok``. ``price`` per GPU-hour and ``currency`` replace those recorded."""
    result = answer.result
    price = answer.price_per_gpu_hour if price is None else price
    assert result.measured_step_seconds is not None
    # Ranks on CPUs lose no GPU time unless a price is given for them.
    counts = answer.accelerated or price is not None
    return WeekCost(
        step_seconds=result.measured_step_seconds / (1 - (result.source.rare_share or 0.0)),
        gpu_hours=HOURS_A_WEEK * float(result.source.world_size or result.source.ranks) if counts else None,
        price_per_gpu_hour=price,
        currency=currency or answer.currency or "USD",
    )
