"""One alert for the same alerts about many ranks or hosts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from rankscope.alerts.alert import Alert, fingerprint, ranks_of
from rankscope.alerts.watch.conditions.candidate import Candidate
from rankscope.analysis.result.text import first_of

MOST_RANKS: Final = 32
"""More ranks than this with the same alert share one alert."""
FEW_RANKS: Final = 16
"""A shared alert is split again when at most this many ranks are left."""
_SHOWN: Final = 8


def merge_shared(unmerged: Iterable[Candidate], *, merged_names: Collection[str] = ()) -> list[Candidate]:
    """Merge alerts of the same name about many ranks or whole hosts into one alert.

    ``merged_names``: names of alerts that are merged already, for which ``FEW_RANKS`` applies instead of ``MOST_RANKS``.
    """
    by_name: dict[str, list[Candidate]] = defaultdict(list)
    for candidate in unmerged:
        by_name[candidate.name].append(candidate)
    merged: list[Candidate] = []
    for name, candidates in by_name.items():
        of_units = [candidate for candidate in candidates if {"rank", "host"} & candidate.alert.labels.keys()]
        most = FEW_RANKS if name in merged_names else MOST_RANKS
        if len(of_units) <= most:
            merged += candidates
            continue
        merged += [candidate for candidate in candidates if candidate not in of_units]
        merged.append(_of_all(of_units))
    return merged


def _of_all(candidates: list[Candidate]) -> Candidate:
    """Build one alert without a rank and a host from those of all: the text of the first, and the highest loss."""
    first = candidates[0]
    labels = {name: value for name, value in first.alert.labels.items() if name not in ("rank", "host")}
    ranks = sorted({rank for candidate in candidates for rank in ranks_of(candidate.alert)})
    hosts = sorted({candidate.alert.labels["host"] for candidate in candidates if "host" in candidate.alert.labels})
    where = f" on {len(hosts)} hosts" if len(hosts) > 1 else f" on {hosts[0]}" if hosts else ""
    texts = dict(first.alert.annotations)
    texts["summary"] = f"{len(ranks)} ranks{where}: {first_of(ranks, _SHOWN)}. Of one of them: {texts.get('summary', '')}"
    texts["ranks"] = ",".join(map(str, ranks))
    if hosts:
        texts["hosts"] = ",".join(hosts)
    losses = [candidate.loss for candidate in candidates if candidate.loss is not None]
    loss = None
    if losses:
        # Losses by different ranks may be the same hours, so only the highest is certain.
        hours, per_hour = max(loss.gpu_hours for loss in losses), max(loss.per_hour for loss in losses)
        loss = msgspec.structs.replace(losses[0], gpu_hours=hours, per_hour=per_hour)
    alert = Alert(labels=labels, annotations=texts, generator_url=first.alert.generator_url.partition("?")[0])
    if "dashboard_url" in texts:
        texts["dashboard_url"] = alert.generator_url
    return Candidate(alert=alert, fingerprint=fingerprint(labels), finding=first.finding, loss=loss)
