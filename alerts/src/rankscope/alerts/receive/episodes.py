"""Whether an alert that arrives is news: senders repeat themselves, and two Alertmanagers say everything twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from rankscope.alerts.receive.config import ActionRule, action_rate
from rankscope.alerts.receive.inbox import Action, Inbox
from rankscope.alerts.receive.known_runs import run_named
from rankscope.alerts.receive.notification import Arrived

LATE_S: Final = 60.0
"""For so long after its end, a firing that began no later than the one that ended is a late copy of it, not a new one."""

News = Literal["change", "update", "reminder"]


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """One alert from when it fired until it fires anew."""

    fingerprint: str
    starts_unix_ns: int
    """As it was first heard: two Prometheis evaluate a moment apart, and Alertmanager settles on the earlier one later."""
    status: Literal["firing", "resolved"]
    changed_unix_ns: int
    """When we heard of the status."""
    told_unix_ns: int
    """When the firing was last passed on; 0: never."""
    told: int = 1
    """How often it was."""
    again: int = 0
    """How many episodes before it began at the same time: a server that comes back goes on with the times it knew."""

    updated_unix_ns: int = 0
    """When its sender said last that more is known of it; 0: never."""

    @property
    def revision(self) -> str:
        """Tells what is passed on now from what was passed on about the same state; empty the first time."""
        again = f"again-{self.again}" if self.again else ""
        return f"{again}told-{self.told}" if self.status == "firing" and self.told > 1 else again


def next_episode(
    known: Episode | None,
    *,
    fingerprint: str,
    status: Literal["firing", "resolved"],
    starts_unix_ns: int,
    now_unix_ns: int,
    repeat_after_s: float,
    updated_unix_ns: int = 0,
) -> tuple[Episode, News | None]:
    """The episode after an alert arrived, and whether anybody has to hear of it.

    A change is news; so is that more is known of it, and, ``repeat_after_s`` after it was last passed on, that it still fires.
    The end of what never fired here is not.
    """
    fresh = Episode(
        fingerprint=fingerprint,
        starts_unix_ns=starts_unix_ns,
        status=status,
        changed_unix_ns=now_unix_ns,
        told_unix_ns=now_unix_ns if status == "firing" else 0,
        again=known.again + 1 if known is not None and known.starts_unix_ns == starts_unix_ns else 0,
        updated_unix_ns=updated_unix_ns,
    )
    if known is None:
        return fresh, "change" if status == "firing" else None
    if status == "resolved":
        # An end that does not say of what is that of the one we know.
        if known.status == "resolved" or 0 < starts_unix_ns < known.starts_unix_ns - LATE_S * 1e9:
            return known, None
        return msgspec.structs.replace(known, status="resolved", changed_unix_ns=now_unix_ns), "change"
    if known.status == "resolved":
        # The clock may have been set back meanwhile, or nobody says when it began: what cannot be ordered is told, once too often
        # rather than never.
        late = 0 <= now_unix_ns - known.changed_unix_ns < LATE_S * 1e9 and 0 < starts_unix_ns <= known.starts_unix_ns
        return (known, None) if late else (fresh, "change")
    updated = updated_unix_ns > known.updated_unix_ns
    if not updated and abs(now_unix_ns - known.told_unix_ns) < repeat_after_s * 1e9:
        return known, None
    latest = max(updated_unix_ns, known.updated_unix_ns)
    episode = msgspec.structs.replace(known, told_unix_ns=now_unix_ns, told=known.told + 1, updated_unix_ns=latest)
    return episode, "update" if updated else "reminder"


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
    """Kind, words for whoever reads the alert, and the action; ``None`` where there are too many already.

    ``besides``: those of the same delivery, which the inbox does not know yet. ``run_id``: of the run that was found, so that it
    is one run to the limits whatever alerts call it; empty where none was.
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
