"""Verdicts that come after their alerts were forwarded."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from rankscope.alerts.alert import UPDATED_AT, rfc3339
from rankscope.alerts.payload import PayloadAlert
from rankscope.alerts.receive.counters import Counters
from rankscope.alerts.receive.episodes import Episode
from rankscope.alerts.receive.forwarding import Forwarding, notice_to_forward
from rankscope.alerts.receive.inbox import Action, Inbox
from rankscope.alerts.receive.verdicts.analyst import Analyst
from rankscope.alerts.receive.verdicts.known_runs import RunName, run_named
from rankscope.alerts.receive.verdicts.run_verdict import verdict_annotations

MOST_OWED: Final = 200
"""Limit, because each stores its alert and is checked at every event. Further alerts get no late verdict."""
TOO_LATE_S: Final = 1800.0
"""An older verdict is no longer useful."""


class LateVerdicts:
    """Verdicts that are owed to alerts. All methods raise ``StoreError``."""

    def __init__(
        self,
        inbox: Inbox,
        analyst: Analyst,
        forwarding: Forwarding,
        *,
        counters: Counters,
        dashboard_url: str | None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._inbox = inbox
        self._analyst = analyst
        self._forwarding = forwarding
        self._counters = counters
        self._dashboard_url = dashboard_url
        self._clock = clock
        self._runs: dict[int, RunName] = {}
        """Run of each entry by its number, so that no alert is decoded again at every look."""

    def owed(self, alert: PayloadAlert, episode: Episode, *, new: int) -> Action | None:
        """Build the inbox entry of an owed verdict; ``None`` at the limit. ``new``: number of new entries of the delivery."""
        if self._inbox.owed_verdict_count() + new >= MOST_OWED:
            return None
        return Action(
            kind="verdict",
            fingerprint=alert.fingerprint,
            starts_unix_ns=episode.starts_unix_ns,
            run_id=alert.labels.get("run_id", ""),
            created_unix_ns=self._clock(),
            steps=0,
            alert=msgspec.json.encode(alert),
        )

    def run_due(self) -> None:
        """Forward the verdicts that are ready."""
        owed = self._inbox.owed_verdicts()
        self._runs = {action.number: self._runs.get(action.number) or _run_of(action) for action in owed}
        for action in owed:
            if self._settled(action):
                self._inbox.forget(action)

    def _settled(self, action: Action) -> bool:
        """Forward a verdict if it is ready. Returns ``False`` if it may still come, ``True`` if the entry can be deleted."""
        if abs(self._clock() - action.created_unix_ns) > TOO_LATE_S * 1e9:
            return True
        episode = self._inbox.episode(action.fingerprint)
        if episode is None or episode.status == "resolved" or episode.starts_unix_ns != action.starts_unix_ns:
            return True
        run_verdict = self._analyst.verdict(self._runs[action.number])
        if run_verdict is None or run_verdict.late:
            return False
        alert = msgspec.json.decode(action.alert, type=PayloadAlert)
        self._counters.add("late_verdicts", outcome="no_verdict" if run_verdict.verdict is None else "verdict")
        if run_verdict.verdict is not None:
            annotations = verdict_annotations(run_verdict, alert.labels, dashboard_url=self._dashboard_url)
            annotations[UPDATED_AT] = rfc3339(self._clock())
            follow_up = notice_to_forward(alert, episode, annotations, revision=f"verdict-{action.number}")
            self._counters.add("forwarded", self._forwarding.put([follow_up]))
        return True


def _run_of(action: Action) -> RunName:
    named = run_named(msgspec.json.decode(action.alert, type=PayloadAlert).labels)
    assert named is not None, "a verdict is owed about a run"
    return named
