"""Of what is wrong with very many ranks there is one alert, not one each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from rankscope.alerts.alert import Alert, fingerprint
from rankscope.alerts.candidate import Candidate
from rankscope.analysis.wording import first_of

MOST_RANKS: Final = 32
"""More ranks of a run with the same alert have one together."""
FEW_RANKS: Final = 16
"""Once they have, as few must be left before each has its own again."""
_SHOWN: Final = 8


def collapsed(found: Iterable[Candidate], *, together: Collection[str] = ()) -> list[Candidate]:
    """``found``, in its order; ``together``: names of alerts that were told together before."""
    by_name: dict[str, list[Candidate]] = defaultdict(list)
    for candidate in found:
        by_name[candidate.name].append(candidate)
    kept: list[Candidate] = []
    for name, candidates in by_name.items():
        of_ranks = [one for one in candidates if "rank" in one.alert.labels]
        most = FEW_RANKS if name in together else MOST_RANKS
        if len(of_ranks) <= most:
            kept += candidates
            continue
        kept += [one for one in candidates if "rank" not in one.alert.labels]
        kept.append(_of_all(of_ranks))
    return kept


def _of_all(candidates: list[Candidate]) -> Candidate:
    """One without a rank, of all: what is said of the first, and what the dearest costs."""
    first = candidates[0]
    labels = {name: value for name, value in first.alert.labels.items() if name not in ("rank", "host")}
    ranks = sorted(int(one.alert.labels["rank"]) for one in candidates)
    hosts = sorted({one.alert.labels["host"] for one in candidates if "host" in one.alert.labels})
    where = f" on {len(hosts)} hosts" if len(hosts) > 1 else f" on {hosts[0]}" if hosts else ""
    texts = dict(first.alert.annotations)
    texts["summary"] = f"{len(ranks)} ranks{where}: {first_of(ranks, _SHOWN)}. Of one of them: {texts.get('summary', '')}"
    texts["ranks"] = ",".join(map(str, ranks))
    if hosts:
        texts["hosts"] = ",".join(hosts)
    losses = [one.loss for one in candidates if one.loss is not None]
    loss = None
    if losses:
        # What one rank costs the others may be the same hours again: the most is what is sure.
        hours, per_hour = max(one.gpu_hours for one in losses), max(one.per_hour for one in losses)
        loss = msgspec.structs.replace(losses[0], gpu_hours=hours, per_hour=per_hour)
    alert = Alert(labels=labels, annotations=texts, generator_url=first.alert.generator_url.partition("?")[0])
    if "dashboard_url" in texts:
        texts["dashboard_url"] = alert.generator_url
    return Candidate(alert=alert, fingerprint=fingerprint(labels), finding=first.finding, loss=loss)
