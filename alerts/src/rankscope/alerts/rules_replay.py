"""Would Prometheus' rules have fired over a run? The shipped rules over the metrics that its ranks would have shown.

A real Prometheus evaluates them. What a rule records is a series that others read, so these are evaluated level by level: first
what rests on the ranks' own metrics, then what rests on that.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TextIO

from rankscope.alerts.external import EXTERNAL
from rankscope.alerts.own_prometheus import OwnPrometheus, find_programs
from rankscope.alerts.prometheus import Rule, Series
from rankscope.alerts.prometheus_replay import replay_rule, values_of
from rankscope.alerts.rank_series import AFTER_S, SCRAPE_S, SHOWN, RankPast, pasts_of, span_of, write_samples, write_series
from rankscope.alerts.replay_result import Replay, Replayed
from rankscope.alerts.rules import runbooks
from rankscope.alerts.threshold_replay import LEFT_OUT, shipped_rules
from rankscope.alerts.thresholds import DEFAULTS, Tables
from rankscope.analysis.wording import counted
from rankscope.exporter.catalogue import CATALOGUE
from rankscope.runs.errors import InputError
from rankscope.runs.metrics import RANK_METRICS
from rankscope.runs.reader import RunReader

RULES: Final = tuple(name for name in runbooks() if name in DEFAULTS)
"""Names of the alerts in the shipped rule file."""
MOST_SAMPLES: Final = 20_000_000
"""A gigabyte and a half of text on the way in."""
LONGER_S: Final = 360.0
"""Beyond the end of the run: what then still fires is kept firing for a while."""
_LOST: Final = f"no end is recorded of {{ranks}}: Prometheus' rules take such a rank to be there for {AFTER_S / 60:.0f} min more"
_SERIES_PER_RANK: Final = 20
_VALUES_AT_ONCE: Final = 1_000_000
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_OF_OTHERS: Final = frozenset({metric.name for metric in CATALOGUE} | {metric.name for metric in EXTERNAL}) - SHOWN
_OF_RANKS: Final = frozenset(metric.name for metric in RANK_METRICS) - SHOWN


def replay_rules(
    run: Path,
    names: Sequence[str] = (),
    *,
    settings: Tables | None = None,
    progress: Callable[[str], None] = lambda _what: None,
) -> Replay:
    """The shipped rules of these ``names`` (all of them when there are none) over a run, with the thresholds ``settings``.

    Those that cannot be evaluated say why. Raises ``InputError`` for a run that cannot be read, ``MissingError`` without a
    Prometheus, ``RankscopeError`` and ``OSError``.
    """
    programs = find_programs()
    reader = RunReader(run)
    progress("reading the run")
    pasts = pasts_of(reader, latest_s=time.time())
    _check_size(run, pasts)
    began, ended = span_of(pasts)
    span = (int(began * 1e9), int((ended + LONGER_S) * 1e9))
    info = reader.info
    with tempfile.TemporaryDirectory(prefix="rankscope-replay-") as folder:
        rules = shipped_rules(programs, Path(folder), settings)
        wanted = {name: rules.get(name) for name in names or RULES}
        obstacles = {name: _obstacle(rule, rules) for name, rule in wanted.items()}
        possible = [rule for name, rule in wanted.items() if rule is not None and obstacles[name] is None]
        # Every evaluation is at the moment of a scrape: what was not there at that one is gone.
        own = OwnPrometheus(programs, Path(folder), lookback_s=0.5 * SCRAPE_S)
        own.remember(partial(write_series, pasts=pasts, run=info.name, run_id=info.run_id, simulated=info.simulated))
        at_once = max(2, _VALUES_AT_ONCE // len(pasts))
        for level in levels(possible, rules):
            progress(f"{len(level)} of the recorded series")
            with own.running() as prometheus:
                recorded = [
                    (rule, series)
                    for rule in level
                    for series in values_of(prometheus, rule.query, span, SCRAPE_S, at_once=at_once)[0]
                ]
            own.remember(partial(_write, recorded=recorded))
        with own.running() as prometheus:
            replayed = [
                _impossible(name, rule, obstacles[name])
                if rule is None or obstacles[name] is not None
                else replay_rule(prometheus, rule, span, SCRAPE_S)[0]
                for name, rule in wanted.items()
            ]
    lost = sum(rank.info.end_unix_ns is None for rank in pasts)
    return Replay(
        path=str(run),
        run_id=info.run_id,
        simulated=info.simulated,
        start_unix_ns=span[0],
        end_unix_ns=span[1],
        interval_s=SCRAPE_S,
        evaluations=int((span[1] - span[0]) / 1e9 // SCRAPE_S) + 1,
        rules=replayed,
        notes=[_LOST.format(ranks=counted(lost, "rank"))] if lost else [],
    )


def levels(alerts: Sequence[Rule], rules: Mapping[str, Rule]) -> list[list[Rule]]:
    """The recording rules among ``rules``, by name, that ``alerts`` rest on; each level rests on those before it."""
    depths: dict[str, int] = {}

    def depth(rule: Rule) -> int:
        needed = _NAME.findall(rule.query)
        for name in needed:
            if name in rules and name not in depths:
                depths[name] = depth(rules[name])
        return 1 + max((depths[name] for name in needed if name in depths), default=-1)

    for alert in alerts:
        depth(alert)
    return [[rules[name] for name in depths if depths[name] == level] for level in range(max(depths.values(), default=-1) + 1)]


def _mentioned(rule: Rule, rules: Mapping[str, Rule]) -> set[str]:
    """Everything that a rule and those it rests on name."""
    names = set(_NAME.findall(rule.query))
    return names.union(*(_mentioned(rules[name], rules) for name in names if name in rules))


def _obstacle(rule: Rule | None, rules: Mapping[str, Rule]) -> str | None:
    """Why it cannot be evaluated over a run; ``None``: it can."""
    if rule is None:
        return LEFT_OUT
    names = _mentioned(rule, rules)
    if names & _OF_OTHERS:
        return "it rests on metrics of exporter or watcher, which are in no run; replay it over the Prometheus that has them"
    if missing := names & _OF_RANKS:
        return f"it rests on {min(missing)}, which is not made from a run's records; replay it over the Prometheus that has it"
    return None


def _impossible(name: str, rule: Rule | None, obstacle: str | None) -> Replayed:
    return Replayed(
        rule=name, source="prometheus", policy="", expression=None if rule is None else rule.query, not_evaluated=obstacle
    )


def _check_size(run: Path, pasts: Sequence[RankPast]) -> None:
    """Raises ``InputError`` for what is too much, or nothing."""
    if not pasts:
        raise InputError(run, "no rank in it says who it is: there is nothing that Prometheus would have seen")
    began, ended = span_of(pasts)
    samples = (ended - began) / SCRAPE_S * len(pasts) * _SERIES_PER_RANK
    if samples > MOST_SAMPLES:
        raise InputError(
            run,
            f"{len(pasts)} ranks for {(ended - began) / 3600:,.0f} h are too much to replay Prometheus' rules over; "
            "replay them over the Prometheus that has the metrics",
        )


def _write(file: TextIO, recorded: Sequence[tuple[Rule, Series]]) -> None:
    for rule, series in recorded:
        labels = {name: text for name, text in series.labels.items() if name != "__name__"} | rule.labels
        write_samples(file, rule.name, labels, series.unix_ns / 1e9, series.values)
