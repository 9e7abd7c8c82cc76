"""What-if of a run: the computed answer, counterfactuals chosen in the address, and the value of shorter steps."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.result.text import joined
from rankscope.analysis.whatif.outcome import Terms
from rankscope.analysis.whatif.result import Effect, WhatIf
from rankscope.analysis.whatif.run_answer import Chain, whatif_with_chain
from rankscope.analysis.whatif.step_scenarios import MOST_CAUSES, MOST_RANKS, Combinations, combinations, read_combinations
from rankscope.base.errors import InputError
from rankscope.base.process import collector_paused
from rankscope.base.text import shortened
from rankscope.dashboards.data.cached_files import read_json
from rankscope.dashboards.data.progress import Progress, Tell
from rankscope.dashboards.model.state import host_item
from rankscope.dashboards.words.causes import CAUSES
from rankscope.dashboards.words.inert import inert_record
from rankscope.runs.named import NamedRun
from rankscope.runs.reader import RunReader

if TYPE_CHECKING:
    from rankscope.dashboards.data.run_data import RunData

ANSWER: Final = "whatif.json"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
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
def make_answer(run: Path, folder: Path, tell: Tell, records: StepRecords | None = None) -> None:
    """Simulate the last attempt of ``run`` and write the answer into ``folder``. Raises ``InputError``, and ``OSError`` if it
    cannot write. ``records``: step records that have been read already.
    """
    now = time.time_ns() if records is None else records.read_unix_ns
    reader = RunReader(run)
    attempts = reader.attempts()
    infos = reader.infos(attempts[-1]) if attempts else {}
    result, _ = _simulated(run, tell, None if records is None else records.table)
    answer = Answer(
        result=result,
        accelerated=any(info.device_kind != "cpu" for info in infos.values()),
        price_per_gpu_hour=reader.info.price_per_gpu_hour,
        currency=reader.info.currency,
        made_unix_ns=now,
    )
    (folder / ANSWER).write_bytes(msgspec.json.encode(inert_record(answer)))


@collector_paused()
def make_combinations(run: Path, folder: Path, tell: Tell) -> None:
    """Write the combinations of parts that the last attempt of ``run`` allows into ``folder``. Raises as ``make_answer``.

    They take as long as the answer, so they are made only when a viewer removes several parts together.
    """
    _, chain = _simulated(run, tell)
    if chain is not None:
        tell(Progress("what-if: simulating combinations"))
        combinations(chain.causes, chain.ranks, chain.combined).write(folder)


def _simulated(run: Path, tell: Tell, table: StepTable | None = None) -> tuple[WhatIf, Chain | None]:
    tell(Progress(_SIMULATING))
    return whatif_with_chain(
        NamedRun(run, None),
        Terms(accelerated=True, world_size=1),
        lambda done, of: tell(Progress(f"{_SIMULATING}: reading ranks", done, of)),
        table=table,
    )


_SIMULATING: Final = "simulating the run without its stragglers"


def read_answer(folder: Path) -> Answer:
    """Read the answer that ``make_answer`` wrote. Raises ``InputError``."""
    return read_json(folder / ANSWER, Answer, "the cached what-if")


def cached_combinations(folder: Path) -> Combinations | None:
    """Read what ``make_combinations`` wrote; ``None``: the run allows none. Raises ``InputError``."""
    try:
        return read_combinations(folder)
    except (OSError, ValueError) as error:
        raise InputError(folder, f"the cached what-if cannot be read: {error}") from error


ALL: Final = "all"
"""Every straggler."""


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


@dataclass(frozen=True, slots=True)
class Thought:
    """Step time without the removed items; ``why``: the reason if it is not known."""

    label: str
    step_seconds: float | None
    why: str = ""


def step_without(run: RunData, items: Sequence[str]) -> Thought | None:
    """Return the step without ``items``, ``None`` if there are no items. The answer must be ``ok``.

    The combinations of the run are read only for several parts, or for one that is not among the answer's.
    """
    if not items:
        return None
    result = run.whatif.result
    if ALL in items:
        return Thought("any straggler", result.ideal_step_seconds)
    labels = {removable.item: removable for removable in removables(result)}
    label = joined([labels[item].label if item in labels else item.replace(":", " ") for item in items])
    if len(items) == 1 and items[0] in labels:
        return Thought(label, labels[items[0]].effect.without_step_seconds)
    return _together(run, _with_ranks_of_hosts(items, result), labels, label)


def _together(run: RunData, items: Sequence[str], known: Mapping[str, Removable], label: str) -> Thought:
    if run.whatif.result.source.evidence != "steps":
        return Thought(label, None, _ONE_BY_ONE)
    causes = _named(items, "cause")
    ranks = [int(name) for name in _named(items, "rank") if name.isascii() and name.isdecimal()]
    if why := _never_together(items, ranks, causes):
        return Thought(label, None, why)
    if (together := run.combinations) is None:
        return Thought(label, None, _ONE_BY_ONE)
    alone = [known[item].label for item in items if item in known and _is_only_alone(item, together)]
    if why := _only_alone(alone) or _absent(together, ranks, causes):
        return Thought(label, None, why)
    return Thought(label, together.without_step_seconds(ranks, causes))


def _with_ranks_of_hosts(items: Sequence[str], result: WhatIf) -> list[str]:
    """Return the items with the ranks of each host in its place."""
    ranks_of = {host_item(row.host): [f"rank:{rank}" for rank in row.ranks] for row in result.by_host}
    return list(dict.fromkeys(each for item in items for each in ranks_of.get(item, [item])))


_ONE_BY_ONE: Final = "From profiled steps only one part can be removed at a time. Choose one listed part, or all stragglers."


def _is_only_alone(item: str, together: Combinations) -> bool:
    kind, _, name = item.partition(":")
    return kind == "cause" and name not in together.causes


def _only_alone(labels: Sequence[str]) -> str:
    if not labels:
        return ""
    return f"Only the {MOST_CAUSES} costliest causes can be removed together with other parts; {joined(labels)} only alone."


def _never_together(items: Sequence[str], ranks: Sequence[int], causes: Sequence[str]) -> str:
    """Return why no run allows these items together; ``""`` if some run may."""
    if len(ranks) + len(causes) < len(items):
        return "Ranks and causes can be removed together; phases and stages only one at a time."
    return f"At most {MOST_RANKS} ranks can be removed together; all stragglers can." if len(ranks) > MOST_RANKS else ""


def _absent(together: Combinations, ranks: Sequence[int], causes: Sequence[str]) -> str:
    """Return which of these the run does not have; ``""`` if it has all of them."""
    absent = [
        *(f"rank {rank}" for rank in ranks if rank not in together.ranks),
        *(cause for cause in causes if cause not in together.causes),
    ]
    return f"The evidence does not have {joined(absent)}." if absent else ""


def _named(items: Sequence[str], kind: str) -> list[str]:
    return [name for of, _, name in (item.partition(":") for item in items) if of == kind]


HOURS_A_WEEK: Final = 168


@dataclass(frozen=True, slots=True)
class Pace:
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


def pace_of(answer: Answer, *, price: float | None = None, currency: str | None = None) -> Pace:
    """Return the pace from an answer that is ``ok``. ``price`` of a GPU-hour and ``currency`` override the recorded ones."""
    result = answer.result
    price = answer.price_per_gpu_hour if price is None else price
    assert result.measured_step_seconds is not None
    # Ranks on CPUs lose no GPU time unless a price is given for them.
    counts = answer.accelerated or price is not None
    return Pace(
        step_seconds=result.measured_step_seconds / (1 - (result.source.rare_share or 0.0)),
        gpu_hours=HOURS_A_WEEK * float(result.source.world_size or result.source.ranks) if counts else None,
        price_per_gpu_hour=price,
        currency=currency or answer.currency or "USD",
    )
