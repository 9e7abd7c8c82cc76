"""Asks runs for what alerts call for, and tells what came of it. What was begun survives the end of the process.

States of an action:

1. ``wanted``: an alert calls for it.
2. ``asked``: the id of its request is stored. ``rankscope capture``, in a separate process, writes the request and waits for the
   result. After a restart it continues with the same request, which the job serves once.
3. ``recorded``: the result is stored.
4. ``done``: the result was forwarded under the alert's own identity.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from rankscope.alerts.alert import UPDATED_AT, rfc3339
from rankscope.alerts.output import alert_line
from rankscope.alerts.receive.analyst import BoundedChild, Finished
from rankscope.alerts.receive.captured import (
    Said,
    impossible,
    is_marked,
    marked,
    of_run,
    said_by_capture,
    said_by_dump,
    steps_together,
)
from rankscope.alerts.receive.config import ActionRule
from rankscope.alerts.receive.counters import Counters
from rankscope.alerts.receive.forwarding import Forwarded, Forwarding, begun
from rankscope.alerts.receive.inbox import Action, Inbox
from rankscope.alerts.receive.known_runs import KnownRun, KnownRuns, RunName, UnknownRunError, run_named
from rankscope.alerts.receive.notification import Arrived, payload_alert
from rankscope.alerts.store.database import StoreError
from rankscope.alerts.toml_file import duration
from rankscope.runs.control import MAX_AGE_SECONDS
from rankscope.runs.control_names import made_ns

AT_ONCE: Final = 4
LOOK_S: Final = 1.0
TROUBLE_S: Final = 5.0
TOO_LATE_S: Final = 3600.0
"""An action that could not be requested for this long is dropped: an alert is about the present."""
_SPARE_S: Final = 60.0
"""Time for a child to start and analyse, beyond its own wait."""


@dataclass(slots=True)
class _Running:
    action: Action
    run: KnownRun
    child: BoundedChild
    dumped: Finished | None = None
    """Result of the dump command while the dump's files are being analysed."""


class Actor:
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
        self._running: dict[int, _Running] = {}
        self._faulty: set[int] = set()

    def run(self, woken: threading.Event, stopping: threading.Event) -> None:
        """Run until ``stopping`` is set. Requests in progress are resumed at the next start."""
        trouble = ""
        while not stopping.is_set():
            try:
                self.run_due()
                trouble = ""
            except (StoreError, OSError) as error:
                trouble = self._troubled(str(error), trouble, stopping)
            except Exception as error:  # noqa: BLE001 - a bug costs one attempt, not all later actions
                trouble = self._troubled(f"internal fault: {type(error).__name__}: {error}", trouble, stopping)
            woken.wait(LOOK_S)
            woken.clear()
        for running in self._running.values():
            running.child.end()

    def _troubled(self, what: str, before: str, stopping: threading.Event) -> str:
        if what != before:
            self._report(f"{what}; actions are kept, and tried again")
        stopping.wait(TROUBLE_S)
        return what

    def run_due(self) -> None:
        """Advance every action as far as possible now. Raises ``StoreError`` and ``OSError``."""
        for running in list(self._running.values()):
            if (done := running.child.poll()) is not None:
                self._try(running.action.number, self._over, running, done)
        for action in self._inbox.actions("wanted", "asked"):
            if action.number not in self._running and len(self._running) < AT_ONCE:
                self._try(action.number, self._begin, action)
        for action in self._inbox.actions("recorded"):
            self._try(action.number, self._tell, action)

    def _try(self, number: int, step: Callable[..., None], *given: object) -> None:
        """Run one step of an action. After a bug the action is left for the next start; the others continue."""
        if number in self._faulty:
            return
        try:
            step(*given)
        except (StoreError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - a bug concerns only this action
            self._faulty.add(number)
            if (running := self._running.pop(number, None)) is not None:
                running.child.end()
            self._report(f"internal fault: action {number} is left for the next start: {type(error).__name__}: {error}")

    def _begin(self, action: Action) -> None:
        alert = msgspec.json.decode(action.alert, type=Arrived)
        rule = next((rule for rule in self._rules if rule.do == action.kind and rule.meets(alert.labels)), None)
        if rule is None:
            self._record(action, impossible(action.kind, "the receiver's file does not allow it any more"))
            return
        if action.state == "wanted" and abs(time.time_ns() - action.created_unix_ns) > TOO_LATE_S * 1e9:
            self._record(action, impossible(action.kind, "the receiver was away for too long after the alert"))
            return
        try:
            run = self._runs.find(_run_of(action, alert))
        except UnknownRunError as error:
            self._record(action, impossible(action.kind, str(error)))
            return
        if action.request_id is None:
            # Stored before the request is made: after a crash the same request is repeated.
            request_id = f"{time.time_ns():019d}-{secrets.token_hex(4)}"
            action = self._inbox.move(action, "asked", request_id=request_id)
        # An expired request is checked once more: it may have been answered.
        void = abs(time.time_ns() - made_ns(str(action.request_id))) > MAX_AGE_SECONDS * 1e9
        wait_s = 1.0 if void else duration(rule.wait)
        how = ["--steps", str(action.steps)] if action.kind == "capture" else ["--flight-recorder"]
        note = f"asked for by an alert: {alert.labels.get('alertname', '')}"[:200]
        arguments = ["capture", str(run.path), *how, "--request", str(action.request_id), "--wait", f"{wait_s:g}"]
        child = BoundedChild([*arguments, f"--note={note}", "--format", "json"], limit_s=wait_s + _SPARE_S)
        self._running[action.number] = _Running(action, run, child)

    def _over(self, running: _Running, done: Finished) -> None:
        action = running.action
        if action.kind == "capture":
            said = said_by_capture(done, dashboard_url=self._dashboard_url)
        elif running.dumped is None and done.output:
            # Start the child first: if that fails, the result of the dump is processed again.
            running.child = BoundedChild(["hang", str(running.run.path), "--format", "json"], limit_s=_SPARE_S)
            running.dumped = done
            return
        else:
            dumped, hang = (done, None) if running.dumped is None else (running.dumped, done)
            said = said_by_dump(dumped, hang, run=running.run, dashboard_url=self._dashboard_url)
        alert = msgspec.json.decode(action.alert, type=Arrived)
        self._record(action, of_run(said, running.run, by_name=not alert.labels.get("run_id")))
        del self._running[action.number]

    def _record(self, action: Action, said: Said) -> None:
        self._inbox.move(action, "recorded", result=msgspec.json.encode(said))

    def _tell(self, action: Action) -> None:
        """Forward the follow-up: the alert in its current state, with the result of the action."""
        alert = msgspec.json.decode(action.alert, type=Arrived)
        said = msgspec.json.decode(action.result or b"", type=Said)
        episode = self._inbox.episode(action.fingerprint)
        if is_marked(alert.annotations):
            said = marked(said)
        words = {**alert.annotations, **said.annotations, f"{action.kind}_outcome": said.outcome}
        if steps := steps_together(alert.annotations.get("next", ""), said.annotations.get("next", "")):
            words["next"] = steps
        words[UPDATED_AT] = rfc3339(time.time_ns())
        # A result of an earlier episode is not forwarded.
        if self._forwarding is not None and episode is not None and episode.starts_unix_ns == action.starts_unix_ns:
            starts_at = begun(alert, action.starts_unix_ns)
            follow_up = msgspec.structs.replace(payload_alert(alert), starts_at=starts_at, annotations=words)
            if episode.status == "resolved":  # as firing, it would page again
                follow_up = msgspec.structs.replace(follow_up, status="resolved", ends_at=rfc3339(episode.changed_unix_ns))
            self._counters.add("forwarded", self._forwarding.put([Forwarded(follow_up, f"{action.kind}-{action.number}")]))
        self._inbox.move(action, "done")
        self._counters.add("actions", kind=action.kind, outcome=said.outcome)
        self._show(alert_line("FOLLOWUP", alert.labels, words))


def _run_of(action: Action, alert: Arrived) -> RunName:
    """Return the run that was found when the action was decided; else the run that the alert names."""
    named = run_named(alert.labels)
    assert named is not None, "an action is wanted of a run"
    return named if action.run_id in (named.run_id, named.name) else RunName(action.run_id, named.name)
