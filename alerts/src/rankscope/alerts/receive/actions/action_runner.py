"""Actions that alerts trigger: requests to runs, whose results are forwarded. Actions survive a restart.

States of an action:

1. ``wanted``: an alert calls for it.
2. ``requested``: the id of its request is stored. ``rankscope capture``, in a separate process, writes the request and waits for
   the result. After a restart it continues with the same request, which the job serves once.
3. ``recorded``: the result is stored.
4. ``done``: the result was forwarded under the alert's own identity.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from rankscope.alerts.alert import UPDATED_AT, rfc3339
from rankscope.alerts.output import alert_line
from rankscope.alerts.payload import Notice, PayloadAlert
from rankscope.alerts.receive.actions.results import (
    ActionResult,
    capture_result,
    dump_result,
    impossible_result,
    is_simulated,
    mark_simulated,
    merged_steps,
    result_of_run,
)
from rankscope.alerts.receive.bounded_child import BoundedChild, ChildResult
from rankscope.alerts.receive.config import ActionRule, action_rate
from rankscope.alerts.receive.counters import Counters
from rankscope.alerts.receive.episodes import Episode
from rankscope.alerts.receive.forwarding import Forwarding, episode_start
from rankscope.alerts.receive.inbox import Action, Inbox
from rankscope.alerts.receive.verdicts.known_runs import KnownRun, KnownRuns, RunName, UnmatchedRunError, run_named
from rankscope.alerts.receive.work_loop import run_until_stopped
from rankscope.alerts.store.database import StoreError
from rankscope.base.options import parse_duration
from rankscope.runs.control import MAX_AGE_SECONDS
from rankscope.runs.control_names import made_ns

AT_ONCE: Final = 4
POLL_S: Final = 1.0
TOO_LATE_S: Final = 3600.0
"""An action that could not be requested for this long is dropped: an alert is about the present."""
_SPARE_S: Final = 60.0
"""Time for a child to start and analyse, beyond its own wait."""


@dataclass(slots=True)
class _RunningAction:
    action: Action
    run: KnownRun
    child: BoundedChild
    dumped: ChildResult | None = None
    """Result of the dump command while the dump's files are being analysed."""


class ActionRunner:
    """Executor of the actions in the inbox. ``show`` takes a line about each finished action."""

    def __init__(
        self,
        inbox: Inbox,
        *,
        runs: KnownRuns,
        rules: Sequence[ActionRule],
        counters: Counters,
        show: Callable[[str], object],
        report: Callable[[str], object],
        forwarding: Forwarding | None = None,
        dashboard_url: str | None = None,
    ) -> None:
        self._inbox = inbox
        self._runs = runs
        self._rules = rules
        self._counters = counters
        self._show = show
        self._report = report
        self._forwarding = forwarding
        self._dashboard_url = dashboard_url
        self._running: dict[int, _RunningAction] = {}
        self._faulty: set[int] = set()

    def run(self, woken: threading.Event, stopping: threading.Event) -> None:
        """Run until ``stopping`` is set. Requests in progress are resumed at the next start."""
        run_until_stopped(self.run_due, woken, stopping, poll_s=POLL_S, report=self._report, item_names="actions")
        for running in self._running.values():
            running.child.end()

    def run_due(self) -> None:
        """Advance every action as far as possible now. Raises ``StoreError`` and ``OSError``."""
        for running in list(self._running.values()):
            if (result := running.child.poll()) is not None:
                self._try(running.action.number, self._finish, running, result)
        for action in self._inbox.actions("wanted", "requested"):
            if action.number not in self._running and len(self._running) < AT_ONCE:
                self._try(action.number, self._begin, action)
        for action in self._inbox.actions("recorded"):
            self._try(action.number, self._forward, action)

    def _try(self, number: int, step: Callable[..., None], *arguments: object) -> None:
        """Run one step of an action. After a bug the action is left for the next start; the others continue."""
        if number in self._faulty:
            return
        try:
            step(*arguments)
        except (StoreError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - a bug concerns only this action
            self._faulty.add(number)
            if (running := self._running.pop(number, None)) is not None:
                running.child.end()
            self._report(f"internal fault: action {number} is left for the next start: {type(error).__name__}: {error}")

    def _begin(self, action: Action) -> None:
        alert = msgspec.json.decode(action.alert, type=PayloadAlert)
        rule = next((rule for rule in self._rules if rule.do == action.kind and rule.applies(alert.labels)), None)
        if rule is None:
            self._record(action, impossible_result(action.kind, "the receiver's file does not allow it any more"))
            return
        if action.state == "wanted" and abs(time.time_ns() - action.created_unix_ns) > TOO_LATE_S * 1e9:
            self._record(action, impossible_result(action.kind, "the receiver was not running for too long after the alert"))
            return
        try:
            run = self._runs.find(_run_of(action, alert))
        except UnmatchedRunError as error:
            self._record(action, impossible_result(action.kind, str(error)))
            return
        if action.request_id is None:
            # Stored before the request is made: after a crash the same request is repeated.
            request_id = f"{time.time_ns():019d}-{secrets.token_hex(4)}"
            action = self._inbox.move(action, "requested", request_id=request_id)
        # An expired request is checked once more: it may have been answered.
        void = abs(time.time_ns() - made_ns(str(action.request_id))) > MAX_AGE_SECONDS * 1e9
        wait_s = 1.0 if void else parse_duration(rule.wait, needs_unit=True)
        how = ["--steps", str(action.steps)] if action.kind == "capture" else ["--flight-recorder"]
        note = f"requested because of the alert {alert.labels.get('alertname', '')}"[:200]
        arguments = ["capture", str(run.path), *how, "--request", str(action.request_id), "--wait", f"{wait_s:g}"]
        child = BoundedChild([*arguments, f"--note={note}", "--format", "json"], limit_s=wait_s + _SPARE_S)
        self._running[action.number] = _RunningAction(action, run, child)

    def _finish(self, running: _RunningAction, child_result: ChildResult) -> None:
        action = running.action
        if action.kind == "capture":
            result = capture_result(child_result, dashboard_url=self._dashboard_url)
        elif running.dumped is None and child_result.output:
            # Start the child first: if that fails, the result of the dump is processed again.
            running.child = BoundedChild(["hang", str(running.run.path), "--format", "json"], limit_s=_SPARE_S)
            running.dumped = child_result
            return
        else:
            dumped, hang = (child_result, None) if running.dumped is None else (running.dumped, child_result)
            result = dump_result(dumped, hang, run=running.run, dashboard_url=self._dashboard_url)
        alert = msgspec.json.decode(action.alert, type=PayloadAlert)
        self._record(action, result_of_run(result, running.run, by_name=not alert.labels.get("run_id")))
        del self._running[action.number]

    def _record(self, action: Action, result: ActionResult) -> None:
        self._inbox.move(action, "recorded", result=msgspec.json.encode(result))

    def _forward(self, action: Action) -> None:
        """Forward the follow-up: the alert in its current state, with the result of the action."""
        alert = msgspec.json.decode(action.alert, type=PayloadAlert)
        result = msgspec.json.decode(action.result or b"", type=ActionResult)
        episode = self._inbox.episode(action.fingerprint)
        if is_simulated(alert.annotations):
            result = mark_simulated(result)
        annotations = {**alert.annotations, **result.annotations, f"{action.kind}_outcome": result.outcome}
        if steps := merged_steps(alert.annotations.get("next", ""), result.annotations.get("next", "")):
            annotations["next"] = steps
        annotations[UPDATED_AT] = rfc3339(time.time_ns())
        # A result of an earlier episode is not forwarded.
        if self._forwarding is not None and episode is not None and episode.starts_unix_ns == action.starts_unix_ns:
            starts_at = episode_start(alert, action.starts_unix_ns)
            follow_up = msgspec.structs.replace(alert, starts_at=starts_at, annotations=annotations)
            if episode.status == "resolved":  # as firing, it would page again
                follow_up = msgspec.structs.replace(follow_up, status="resolved", ends_at=rfc3339(episode.changed_unix_ns))
            self._counters.add(
                "forwarded", self._forwarding.put([Notice(alert=follow_up, revision=f"{action.kind}-{action.number}")])
            )
        self._inbox.move(action, "done")
        self._counters.add("actions", kind=action.kind, outcome=result.outcome)
        self._show(alert_line("FOLLOWUP", alert.labels, annotations))


def _run_of(action: Action, alert: PayloadAlert) -> RunName:
    """Return the run that was found when the action was decided; else the run that the alert names."""
    named = run_named(alert.labels)
    assert named is not None, "an action is wanted of a run"
    return named if action.run_id in (named.run_id, named.name) else RunName(action.run_id, named.name)


def wanted_actions(
    rules: Sequence[ActionRule],
    alert: PayloadAlert,
    episode: Episode,
    inbox: Inbox,
    also_wanted: Sequence[Action],
    *,
    run_id: str = "",
    now_unix_ns: int,
) -> Iterator[tuple[str, str, Action | None]]:
    """Yield kind, text for the alert, and the action for each rule that applies; ``None`` if a rate limit is reached.

    ``also_wanted``: actions of the same delivery, which are not in the inbox yet. ``run_id``: the run that was found, so that the
    limits per run do not depend on the name in the alert; empty if none was found.
    """
    named = run_named(alert.labels)
    if alert.status != "firing" or named is None:
        return
    run_id = run_id or named.text
    actions: set[str] = set()
    for rule in rules:
        if not rule.applies(alert.labels) or rule.do in actions:
            continue
        if inbox.has_action(rule.do, alert.fingerprint, episode.starts_unix_ns):
            continue
        actions.add(rule.do)
        for limit, run in ((rule.at_most, run_id), (rule.at_most_overall, None)):
            count, seconds = action_rate(limit)
            recent_count = inbox.recent_actions(rule.do, seconds, run, now_unix_ns=now_unix_ns)
            recent_count += sum(other.kind == rule.do and run in (None, other.run_id) for other in also_wanted)
            if recent_count >= count:
                most = limit if run is None else f"{limit.removesuffix(' per run')} per run"
                yield rule.do, f"not requested: the limit of {most} is reached", None
                break
        else:
            request = f"a profile of its next {rule.steps} steps" if rule.do == "capture" else "a dump of its Flight Recorders"
            action = Action(
                kind=rule.do,
                fingerprint=alert.fingerprint,
                starts_unix_ns=episode.starts_unix_ns,
                run_id=run_id,
                created_unix_ns=now_unix_ns,
                steps=rule.steps,
                alert=msgspec.json.encode(alert),
            )
            yield rule.do, f"{request}; the result follows", action
