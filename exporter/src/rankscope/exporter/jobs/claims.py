"""What ranks say in the spool about the GPU they are on."""

from __future__ import annotations

from collections.abc import Mapping

from rankscope.exporter.jobs.devices import bare
from rankscope.exporter.jobs.environment import number, word
from rankscope.exporter.jobs.join import Claim
from rankscope.exporter.jobs.party import Ranks
from rankscope.exporter.spool.reading import SpoolSample
from rankscope.exporter.spool.series import RankKey

_METRIC = "rank_info"


def claims_of(sample: SpoolSample | None) -> dict[str, list[Claim]]:
    """The ranks by the uuid they name, without its prefix, each as the word of the user whose files speak of its run."""
    claims: dict[str, list[Claim]] = {}
    if sample is None:
        return claims
    for family in sample.families:
        if family.name != _METRIC:
            continue
        for series in family.series:
            labels = dict(series.labels)
            run_id = labels.get("run_id", "")
            owner, uuid = sample.owners.get(run_id), labels.get("gpu_uuid")
            if owner is not None and uuid:
                key = RankKey(labels.get("run", ""), labels.get("rank", ""), labels.get("slot", ""))
                silent = sample.states.get(key, "silent") == "silent"
                claims.setdefault(bare(uuid), []).append(Claim(owner, _ranks(labels), silent))
    return claims


def _ranks(labels: Mapping[str, str]) -> Ranks:
    return Ranks(
        rank=number(labels.get("rank")),
        local_rank=number(labels.get("local_rank")),
        world_size=number(labels.get("world_size")),
        run_id=word(labels.get("run_id")),
    )
