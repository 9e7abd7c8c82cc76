"""Would an alert have fired over a run? Asked of whoever would have seen it: the watcher, and Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from rankscope.alerts.replay import WATCHER_RULES, How, naming_the_folder, replay_run
from rankscope.alerts.replay_result import Replay, Replayed
from rankscope.alerts.rules_replay import RULES, replay_rules
from rankscope.alerts.thresholds import Tables
from rankscope.runs.errors import RankscopeError

By = Literal["watcher", "prometheus"]
KNOWN: Final = tuple(dict.fromkeys((*WATCHER_RULES, *RULES)))
"""Names of all alerts."""


def replay_alerts(
    run: Path,
    names: Sequence[str],
    *,
    by: By | None,
    how: How,
    settings: Tables | None = None,
    progress: Callable[[str], None] = lambda _what: None,
) -> Replay:
    """The alerts of these ``names`` (all when there are none) over a run, by one or by both. Raises ``RankscopeError``.

    ``settings`` are the thresholds of the rules. Where the watcher has an answer and Prometheus cannot give one, the reason
    stands in its place.
    """
    watched = [name for name in names or WATCHER_RULES if name in WATCHER_RULES] if by != "prometheus" else []
    ruled = [name for name in names or RULES if name in RULES] if by != "watcher" else []
    watcher = replay_run(run, watched, how=how) if watched else None
    if not ruled and watcher is not None:
        return watcher
    try:
        with naming_the_folder():
            prometheus = replay_rules(run, ruled, settings=settings, progress=progress)
    except RankscopeError as error:
        if watcher is None:
            raise
        missing = [Replayed(rule=name, source="prometheus", policy="", not_evaluated=str(error)) for name in ruled]
        return msgspec.structs.replace(watcher, rules=[*watcher.rules, *missing])
    if watcher is None:
        return prometheus
    notes = dict.fromkeys((*watcher.notes, *prometheus.notes))
    return msgspec.structs.replace(watcher, rules=[*watcher.rules, *prometheus.rules], notes=list(notes))
