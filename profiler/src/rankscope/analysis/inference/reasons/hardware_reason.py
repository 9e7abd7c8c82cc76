"""Physical reason why a named rank is late, from the hardware samples of its host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.hardware import Readings, in_steps, readings_of
from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.inference.reasons.diagnosis import Diagnosis
from rankscope.analysis.inference.reasons.physical import MAY_BE_DEVICE, GpuComparison, explain
from rankscope.analysis.inference.reasons.run_evidence import RunEvidence
from rankscope.analysis.result.analysis import Evidence
from rankscope.analysis.statistics import middle
from rankscope.runs.records import RankInfo
from rankscope.runs.step_columns import MEMORY

_PEERS: Final = 16
"""Largest number of GPUs to compare with, those of the same host first."""

_PEERS_ELSEWHERE: Final = 4
"""Largest number of hosts that are read besides the rank's own."""


def explain_diagnosis(diagnosis: Diagnosis, run: RunEvidence, late: NDArray[np.bool_], looked_at: NDArray[np.bool_]) -> Diagnosis:
    """Return ``diagnosis`` with the physical reason why its first rank was late, and its evidence; or a note without readings.

    ``late``: the steps in which it was late, out of those ``looked_at``; both are [steps of the table]. Unchanged for ranks
    without a GPU, for a slowdown that has a reason already, and for one that moves between ranks.
    """
    rank = diagnosis.ranks[0]
    info = run.infos.get(rank)
    if info is None or info.gpu_uuid is None or diagnosis.pattern == "rotating" or diagnosis.cause.explained_by is not None:
        return diagnosis
    peers = _peers(diagnosis, run.infos)
    readings, reason = _read(run, [rank, *peers])
    if rank not in readings:
        return replace(diagnosis, note=f"{diagnosis.note} There are no hardware samples of its GPU{reason}.".lstrip())
    lost = _lost(diagnosis, late, looked_at)
    slow = _of_steps(run, readings, [rank], late)[rank]
    gpus = GpuComparison(
        slow=slow,
        other=_of_steps(run, readings, [rank], looked_at & ~late)[rank],
        peers=_of_steps(run, readings, peers, late),
        lost=lost,
        every=readings[rank],
        every_peer={peer: readings[peer] for peer in peers if peer in readings},
        retries=_retries(run, rank, peers),
    )
    evidence = [*diagnosis.evidence, _count(slow, gpus.peers, late)]
    device_unseen = not any(row.name == "device_busy_excess" for row in diagnosis.evidence)
    explanation = explain(gpus, diagnosis.cause.cause, device_unseen=device_unseen)
    if explanation is None:
        return replace(diagnosis, evidence=evidence)
    row, wording = explanation.row, explanation.wording
    clause = f"{wording} (SIMULATED GPU readings)" if _simulated(readings) else wording
    cause = diagnosis.cause
    if row.on_device and cause.cause in MAY_BE_DEVICE:
        cause = replace(cause, cause="compute", wording="its device needs longer")
    cause = replace(cause, explained_by=row.reason, wording=f"{cause.wording}, for {clause}")
    return replace(diagnosis, cause=cause, evidence=[*evidence, _labelled(explanation.evidence, readings)])


def _peers(diagnosis: Diagnosis, infos: Mapping[int, RankInfo]) -> list[int]:
    """Return ranks with other GPUs of the same model that are not to blame, those of the same host first."""
    own = infos[diagnosis.ranks[0]]
    # Ranks may share a GPU.
    own_gpus = {infos[rank].gpu_uuid for rank in diagnosis.ranks if rank in infos}
    same = [
        rank
        for rank, info in infos.items()
        if info.gpu_uuid is not None and info.gpu_uuid not in own_gpus and info.gpu_name == own.gpu_name
    ]
    hosts = [
        own.host,
        *islice(dict.fromkeys(infos[rank].host for rank in same if infos[rank].host != own.host), _PEERS_ELSEWHERE),
    ]
    return sorted((rank for rank in same if infos[rank].host in hosts), key=lambda rank: (infos[rank].host != own.host, rank))[
        :_PEERS
    ]


def _read(run: RunEvidence, ranks: Sequence[int]) -> tuple[dict[int, Readings], str]:
    """Return the readings of the ranks' GPUs, and the reason why the first has none, where the samples record it."""
    uuids: dict[str, dict[str, int]] = {}
    for rank in ranks:
        info = run.infos[rank]
        uuids.setdefault(info.host, {})[info.gpu_uuid or ""] = rank
    starts = run.table.starts(int(np.searchsorted(run.table.ranks, ranks[0])))
    begin = int(starts[starts > 0].min(initial=2**62))
    end = int(run.table.last_end_unix_ns)
    by_rank: dict[int, Readings] = {}
    reason = ""
    # Only read existing folders: a host's name comes from a file and may be anything.
    present = set(run.reader.hosts())
    for number, (host, wanted) in enumerate(uuids.items()):
        if host not in present:
            continue
        for uuid, readings in readings_of(run.reader.hardware(host, begin), wanted, (begin, end)).items():
            by_rank[wanted[uuid]] = readings
        if number == 0 and wanted[next(iter(wanted))] not in by_rank:
            missing = next((sample.missing for sample in run.reader.hardware(host) if sample.missing is not None), None)
            reason = f": {missing}" if missing else ""
    return by_rank, reason


def _of_steps(
    run: RunEvidence, readings: Mapping[int, Readings], ranks: Iterable[int], wanted: NDArray[np.bool_]
) -> dict[int, Readings]:
    row_of = {int(rank): row for row, rank in enumerate(run.table.ranks)}
    return {
        rank: in_steps(readings[rank], run.table.starts(row_of[rank]), _walls(run.table, row_of[rank]), wanted)
        for rank in ranks
        if rank in readings and rank in row_of
    }


def _walls(table: StepTable, row: int) -> NDArray[np.float64]:
    return table.of_rank("wall_us", row).astype(np.float64)


def _lost(diagnosis: Diagnosis, late: NDArray[np.bool_], looked_at: NDArray[np.bool_]) -> float:
    """Return the share of its time that the rank lost in the steps in which it was late."""
    often = late.sum() / max(1, looked_at.sum())
    gain = diagnosis.gain_us / often if often > 0 else diagnosis.gain_us
    return float(gain / max(diagnosis.step_us - diagnosis.gain_us + gain, 1e-9))


def _retries(run: RunEvidence, rank: int, peers: Iterable[int]) -> tuple[float, float] | None:
    """Return the allocator retries over the run, of the rank and of a typical peer; ``None`` where they are not recorded."""
    counts = []
    for each in (rank, *islice(peers, _PEERS_ELSEWHERE)):
        samples = run.table.memory.get(each)
        retries = np.empty(0) if samples is None else samples[:, 1 + MEMORY.index("allocator_retries")]
        recorded = retries[np.isfinite(retries)]
        counts.append(float(recorded[-1] - recorded[0]) if len(recorded) else None)
    usual = middle(counts[1:])
    return None if counts[0] is None or usual is None else (counts[0], usual)


def _simulated(by_rank: Mapping[int, Readings]) -> bool:
    return any(readings.simulated for readings in by_rank.values())


def _labelled(evidence: Evidence, by_rank: Mapping[int, Readings]) -> Evidence:
    if not _simulated(by_rank):
        return evidence
    return Evidence(name=evidence.name, value=evidence.value, unit=evidence.unit, detail=f"SIMULATED: {evidence.detail}")


def _count(slow: Readings, peers: Mapping[int, Readings], late: NDArray[np.bool_]) -> Evidence:
    return Evidence(
        name="hardware_readings",
        value=float(len(slow.unix_ns)),
        unit="readings",
        detail=f"of its GPU in the {int(late.sum())} steps, compared with {len(peers)} GPUs of the same model",
    )
