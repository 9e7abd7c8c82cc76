"""Which actions an alert calls for: those that the operator allowed, once in each episode, and only so often."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from rankscope.alerts.receive.config import ActionRule, action_rate
from rankscope.alerts.receive.episodes import Episode
from rankscope.alerts.receive.inbox import Action, Inbox
from rankscope.alerts.receive.known_runs import run_named
from rankscope.alerts.receive.notification import Arrived


def wanted_actions(
    rules: Sequence[ActionRule],
    alert: Arrived,
    episode: Episode,
    inbox: Inbox,
    besides: Sequence[Action],
    *,
    run_id: str = "",
    now_unix_ns: int,
) -> Iterator[tuple[str, str, Action | None]]:
    """Yield kind, text for the alert, and the action for each rule that applies; ``None`` if a rate limit is reached.

    ``besides``: actions of the same delivery, which are not in the inbox yet. ``run_id``: the run that was found, so that the
    limits per run do not depend on the name in the alert; empty if none was found.
    """
    named = run_named(alert.labels)
    if alert.status != "firing" or named is None:
        return
    run_id = run_id or named.text
    done: set[str] = set()
    for rule in rules:
        if not rule.meets(alert.labels) or rule.do in done or inbox.acted(rule.do, alert.fingerprint, episode.starts_unix_ns):
            continue
        done.add(rule.do)
        for limit, run in ((rule.at_most, run_id), (rule.at_most_overall, None)):
            count, seconds = action_rate(limit)
            made = inbox.acted_lately(rule.do, seconds, run, now_unix_ns=now_unix_ns)
            made += sum(one.kind == rule.do and run in (None, one.run_id) for one in besides)
            if made >= count:
                most = limit if run is None else f"{limit.removesuffix(' per run')} per run"
                yield rule.do, f"no, for there were enough lately: at most {most}", None
                break
        else:
            what = f"a profile of {rule.steps} of its next steps" if rule.do == "capture" else "what its Flight Recorders hold"
            action = Action(
                kind=rule.do,
                fingerprint=alert.fingerprint,
                starts_unix_ns=episode.starts_unix_ns,
                run_id=run_id,
                created_unix_ns=now_unix_ns,
                steps=rule.steps,
                alert=msgspec.json.encode(alert),
            )
            yield rule.do, f"{what}; what it shows follows", action
