"""Assignment of slots, so that no two runs of a node have the same series.

In one folder, the ranks ensure that by the slot in the file name. Ranks in pods with folders of their own do not see each other's
files, and a malicious process may ignore the convention.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from rankscope.exporter.spool.series import Labels, RankKey, SpoolFamily, SpoolFile, SpoolSeries

_Claimant = tuple[str, str]
"""Run id, and the slot in the file: a run may have a rank twice."""


class Slots:
    """Assignment of slots to runs, kept from one reading to the next."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, str], dict[_Claimant, str]] = {}

    def given(self, files: Sequence[SpoolFile]) -> list[SpoolFile]:
        """Return the files in their order, with unique slots: known files keep their slot, a new file may get another one."""
        before, now = self._given, dict[tuple[str, str], dict[_Claimant, str]]()
        for file in files:
            rank, claimant = (file.key.run, file.key.rank), (file.run_id, file.key.slot)
            if (slot := before.get(rank, {}).get(claimant)) is not None:
                now.setdefault(rank, {})[claimant] = slot
        for file in files:
            claimants = now.setdefault((file.key.run, file.key.rank), {})
            claimant = (file.run_id, file.key.slot)
            if claimant not in claimants:
                claimants[claimant] = _free(file.key.slot, claimants.values())
        self._given = now
        return [_with_slot(file, now[file.key.run, file.key.rank][file.run_id, file.key.slot]) for file in files]


def _free(wanted: str, taken: Collection[str]) -> str:
    return wanted if wanted not in taken else next(slot for slot in map(str, itertools.count()) if slot not in taken)


def _with_slot(file: SpoolFile, slot: str) -> SpoolFile:
    if slot == file.key.slot:
        return file
    families = tuple(
        SpoolFamily(
            family.name,
            family.type,
            family.help,
            tuple(SpoolSeries(one.name, _labels(one.labels, slot), one.value) for one in family.series),
        )
        for family in file.families
    )
    return SpoolFile(RankKey(file.key.run, file.key.rank, slot), file.run_id, file.disabled, families)


def _labels(labels: Labels, slot: str) -> Labels:
    return tuple((name, slot if name == "slot" else value) for name, value in labels)
