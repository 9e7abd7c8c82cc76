"""A test alert, sent the way of every alert: outbox, template, signature, address check."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rankscope.alerts.alert import Alert, Notice, fingerprint
from rankscope.alerts.deliver.courier import Courier
from rankscope.alerts.deliver.message import messages_about
from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.deliver.retrying import Judgement
from rankscope.alerts.deliver.sender import Sender, courier_for
from rankscope.alerts.deliver.target import Target
from rankscope.alerts.deliver.trial import Trial, Tried
from rankscope.alerts.store.database import Store


def try_targets(targets: Sequence[Target], *, now_unix_ns: int) -> Trial:
    """Send each target a firing and a resolved test alert. A target that does not accept the first gets no second."""
    results = [tried for target in targets for tried in _try(target, now_unix_ns)]
    return Trial(ok=all(tried.delivered for tried in results), results=results)


def trial_notice(now_unix_ns: int, *, ended: bool) -> Notice:
    """Build an alert that is clearly a test."""
    labels = {
        "alertname": "RankscopeTest",
        "severity": "info",
        "run_id": f"test-{now_unix_ns // 10**9}",
        "rank": "0",
        "host": "none",
    }
    annotations = {
        "summary": "[simulated] A test of rankscope's webhook. Nobody needs to do anything.",
        "simulated": "true",
        "cause": "none: this is a test",
        "cost": "0.00",
        "next": "rankscope alerts --help",
    }
    return Notice(
        alert=Alert(labels=labels, annotations=annotations),
        fingerprint=fingerprint(labels),
        starts_at_unix_ns=now_unix_ns,
        ends_at_unix_ns=now_unix_ns + 10**9 if ended else None,
    )


@dataclass(slots=True)
class _Noting:
    """Courier that remembers the judgement of the courier in it."""

    inner: Courier
    judgement: Judgement | None = None

    def attempt(self, message_id: str, payload: bytes) -> Judgement:
        self.judgement = self.inner.attempt(message_id, payload)
        return self.judgement


def _try(target: Target, now_unix_ns: int) -> list[Tried]:
    noting = _Noting(courier_for(target))
    outbox = Outbox(Store(None))
    # Give up at the first failure; two messages need no rate limit.
    target = replace(target, retry_for_s=0.0, rate=None)
    sender = Sender(outbox, [target], report=lambda _: None, courier=lambda _: noting)
    results: list[Tried] = []
    for ended in (False, True):
        notice = trial_notice(now_unix_ns, ended=ended)
        outbox.put(messages_about(target.name, [notice], most_alerts=target.most_alerts))
        began = time.monotonic()
        sender.run_due()
        told = noting.judgement
        assert told is not None
        results.append(
            Tried(
                target=target.label,
                status="resolved" if ended else "firing",
                delivered=told.kind == "delivered",
                answer=told.reason,
                seconds=round(time.monotonic() - began, 3),
            )
        )
        if told.kind != "delivered":
            break
    return results
