"""Answers of NCCL RAS: of a job that is alive, and those that the recorder kept in a run."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankscope.analysis.hang.ras.json_form import read_json
from rankscope.analysis.hang.ras.snapshot import AnswerError, Snapshot
from rankscope.analysis.hang.ras.text_form import read_text
from rankscope.base.errors import InputError
from rankscope.runs.ras import RasAnswer, ask, read_answers
from rankscope.runs.reader import RunReader
from rankscope.runs.records import RankInfo

WAIT_SECONDS: Final = 5.0
"""Usual time between the two questions: what a job does not continue within it counts as waiting, as in dumps."""
PAIR_NS: Final = 60 * 10**9
"""Most time between two kept answers that are compared."""


@dataclass(frozen=True, slots=True)
class RasAnswers:
    """One or two answers of the same job, oldest first, and their snapshots."""

    ras_answers: list[RasAnswer]
    snapshots: list[Snapshot]
    live: bool
    warnings: list[str]

    @property
    def interval_s(self) -> float | None:
        """Seconds between the two questions."""
        first, last = self.ras_answers[0].asked_unix_ns, self.ras_answers[-1].asked_unix_ns
        return (last - first) / 1e9 if len(self.ras_answers) > 1 else None


def live_answers(address: str, *, wait_s: float = WAIT_SECONDS) -> RasAnswers:
    """Ask a live job twice, ``wait_s`` apart. A second question without an answer is a warning. Raises ``InputError``."""
    answers = _read([ask(address)], live=True)
    time.sleep(wait_s)
    try:
        later = _read([ask(address)], live=True)
    except InputError as error:
        answers.warnings.append(f"NCCL RAS answered once and not a second time: {error}")
        return answers
    return RasAnswers(answers.ras_answers + later.ras_answers, answers.snapshots + later.snapshots, live=True, warnings=[])


def kept_answers(run: Path, attempt: int) -> RasAnswers | None:
    """Return the last answers in a run, or ``None`` if there are none. Raises ``InputError`` for one that cannot be read."""
    ras_answers = read_answers(run, attempt, most=2)
    if len(ras_answers) == 2 and ras_answers[1].asked_unix_ns - ras_answers[0].asked_unix_ns > PAIR_NS:
        del ras_answers[0]
    return _read(ras_answers, live=False) if ras_answers else None


def _read(ras_answers: list[RasAnswer], *, live: bool) -> RasAnswers:
    snapshots = []
    for answer in ras_answers:
        try:
            snapshots.append(read_json(answer.text) if answer.format == "json" else read_text(answer.text))
        except AnswerError as error:
            raise InputError(answer.address, f"NCCL RAS: its answer is {error}") from error
    return RasAnswers(ras_answers, snapshots, live, [])


def has_local_rank(reader: RunReader, attempt: int, *, proc: Path = Path("/proc")) -> bool:
    """Return whether a rank of the attempt is a process of this host, and NCCL may be among its backends."""
    about = reader.attempt(attempt)
    return (
        about is not None
        and "nccl" in (about.backend or "")
        and any(_is_here(info, proc) for info in reader.infos(attempt).values())
    )


def _is_here(info: RankInfo, proc: Path) -> bool:
    return info.end_unix_ns is None and info.host == socket.gethostname() and (proc / str(info.pid)).is_dir()


def can_be_of_run(answers: RasAnswers, infos: Mapping[int, RankInfo]) -> bool:
    """Return whether the job that answered can be that of the run: they have a process id in common, or the answer has none."""
    pids = {device.pid for snapshot in answers.snapshots for device in snapshot.devices()}
    return not pids or not infos or not pids.isdisjoint(info.pid for info in infos.values())
