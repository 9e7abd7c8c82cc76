"""What-if of a run, computed beside the server: the answer, and the data to answer any combination of ranks and causes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from rankscope.analysis.whatif.outcome import Terms
from rankscope.analysis.whatif.result import WhatIf
from rankscope.analysis.whatif.run_answer import whatif_with_chain
from rankscope.analysis.whatif.step_scenarios import Combinations, combinations, read_combinations
from rankscope.base.errors import InputError
from rankscope.dashboards.data.progress import Progress, Tell
from rankscope.dashboards.data.whole import read_json
from rankscope.dashboards.inert import inert_record
from rankscope.runs.named import NamedRun
from rankscope.runs.reader import RunReader

SCENARIOS: Final = "whatif.json"


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
class Scenarios:
    """What-if answer and the combinations that can be computed."""

    answer: Answer
    combinations: Combinations | None
    """``None``: only the single parts in ``answer``; profiled steps do not allow combinations."""


def make_scenarios(run: Path, folder: Path, tell: Tell) -> None:
    """Simulate the last attempt of ``run`` and write the result into ``folder``. Raises ``InputError``, and ``OSError`` if it
    cannot write.
    """
    now = time.time_ns()
    reader = RunReader(run)
    attempts = reader.attempts()
    infos = reader.infos(attempts[-1]) if attempts else {}
    terms = Terms(accelerated=True, world_size=1)
    result, chain = whatif_with_chain(
        NamedRun(run, None),
        terms,
        lambda done, of: tell(Progress("playing the run without its stragglers: reading ranks", done, of)),
    )
    if chain is not None:
        tell(Progress("what-if: playing combinations"))
        combinations(chain.causes, chain.ranks, chain.combined).write(folder)
    answer = Answer(
        result=result,
        accelerated=any(info.device_kind != "cpu" for info in infos.values()),
        price_per_gpu_hour=reader.info.price_per_gpu_hour,
        currency=reader.info.currency,
        made_unix_ns=now,
    )
    (folder / SCENARIOS).write_bytes(msgspec.json.encode(inert_record(answer)))


def read_scenarios(folder: Path) -> Scenarios:
    """Read the scenarios that ``make_scenarios`` wrote. Raises ``InputError``."""
    answer = read_json(folder / SCENARIOS, Answer, "the cached what-if")
    try:
        return Scenarios(answer, read_combinations(folder))
    except (OSError, ValueError) as error:
        raise InputError(folder, f"the cached what-if cannot be read: {error}") from error
