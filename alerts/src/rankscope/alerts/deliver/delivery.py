"""Who still has to be told what: brings the ledger's alerts to every receiver, and remembers what each accepted."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from rankscope.alerts.alert import Notice
from rankscope.alerts.deliver.post import DeliveryError
from rankscope.alerts.owners import CRASHED
from rankscope.alerts.watch.ledger import Entry, Ledger, Status


class Background:
    """Runs jobs one after the other; an idle one costs nothing, and none keeps the process from ending."""

    def __init__(self, name: str) -> None:
        self.busy = False
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, job: Callable[[], None]) -> None:
        """Run a job; the one before must have been asked for with ``result``."""
        assert not self.busy
        self.busy = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def result(self, timeout_s: float) -> tuple[bool, Exception | None]:
        """Whether the job is over, waiting for that at most so long, and the error that ended it."""
        try:
            error = self._results.get(timeout=timeout_s) if timeout_s > 0 else self._results.get_nowait()
        except queue.Empty:
            return False, None
        self.busy = False
        return True, error

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                job()
            except Exception as error:  # noqa: BLE001 - it is handed to whoever asks
                self._results.put(error)
            else:
                self._results.put(None)


LONGEST_PAUSE_S: Final = 120.0
"""A receiver that keeps failing is left alone for at most this long."""
WAIT_S: Final = 0.5
"""A receiver that takes longer holds up neither the others nor the next evaluation; what came of it is learned at a later one."""


class Receiver(Protocol):
    """Where alerts go."""

    key: str
    """Stable name for the state file."""
    name: str
    """Name for people, free of secrets."""
    resend_after_s: float | None
    """A firing alert is sent again after this long; ``None``: only changes are sent."""

    def send(self, notices: Sequence[Notice], *, now_unix_ns: int) -> None:
        """Deliver notices of any groups, in a thread of the receiver's own. Raises ``DeliveryError``."""


class Delivery:
    """Delivers to all receivers; one that fails or is slow holds up nobody else and is tried again at a later evaluation.

    A receiver that failed is tried at the next evaluation, then with pauses that start at ``retry_after_s`` and double up to
    two minutes. ``elapsed``: seconds of a clock that is never set.
    """

    def __init__(
        self,
        receivers: Sequence[Receiver],
        *,
        retry_after_s: float,
        report: Callable[[str], None],
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lines = [_Line(receiver, retry_after_s=retry_after_s, report=report, elapsed=elapsed) for receiver in receivers]

    def deliver(self, ledger: Ledger, *, now_unix_ns: int, wait_s: float = WAIT_S) -> None:
        """Send what is due, wait so long for what comes of it, then drop from the ledger what everybody knows."""
        for line in self._lines:
            line.finish(0.0)
            line.begin(ledger, now_unix_ns)
        patience = time.monotonic() + wait_s
        for line in self._lines:
            line.finish(patience - time.monotonic())
        # While somebody may be hearing of a beginning, nobody knows yet who has to hear of its end.
        if not any(line.busy for line in self._lines):
            ledger.forget(lambda entry: any(_news(entry, line.receiver) for line in self._lines))
        followed = {entry.fingerprint for entry in ledger.entries}
        for line in self._lines:
            line.forget_all_but(followed)

    def undelivered(self, ledger: Ledger) -> list[str]:
        """Names of the receivers that have not accepted something they should know."""
        return [
            line.receiver.name
            for line in self._lines
            if line.busy or any(_news(entry, line.receiver) for entry in ledger.entries if entry.track.state != "pending")
        ]


class _Line:
    """What goes to one receiver."""

    def __init__(
        self, receiver: Receiver, *, retry_after_s: float, report: Callable[[str], None], elapsed: Callable[[], float]
    ) -> None:
        self.receiver = receiver
        self._retry_after_s = retry_after_s
        self._report = report
        self._elapsed = elapsed
        self._background = Background(f"rankscope-deliver-{receiver.key}")
        self._sending: list[tuple[Entry, Status, str]] = []
        self._began_s = 0.0
        self._sent_s: dict[str, float] = {}
        self._failures = 0
        self._not_before_s: float | None = None
        self._last_error: str | None = None

    @property
    def busy(self) -> bool:
        """Whether something is being sent."""
        return self._background.busy

    def begin(self, ledger: Ledger, now_unix_ns: int) -> None:
        """Send what is due, unless something is being sent, or the receiver is left alone."""
        now_s = self._elapsed()
        if self.busy or (self._not_before_s is not None and now_s < self._not_before_s):
            return
        due = [entry for entry in ledger.entries if _news(entry, self.receiver) or self._stale(entry, now_s)]
        if not due:
            return
        self._sending = [(entry, "firing" if entry.track.state == "firing" else "resolved", entry.revision) for entry in due]
        self._began_s = now_s
        # Made here: the thread must not look at entries that an evaluation changes.
        notices = [entry.notice() for entry in due]
        self._background.begin(partial(self.receiver.send, notices, now_unix_ns=now_unix_ns))

    def finish(self, timeout_s: float) -> None:
        """Take in what came of it, if it is over by then."""
        if not self.busy:
            return
        over, error = self._background.result(timeout_s)
        if not over:
            return
        if isinstance(error, DeliveryError):
            self._failed(str(error))
            return
        if error is not None:
            self._failed(f"{type(error).__name__}: {error}")
            return
        for entry, status, revision in self._sending:
            entry.told[self.receiver.key] = status
            entry.knows[self.receiver.key] = revision
            self._sent_s[entry.fingerprint] = self._began_s
        self._worked()

    def forget_all_but(self, fingerprints: set[str]) -> None:
        """Nothing else is followed any more."""
        self._sent_s = {sent: when for sent, when in self._sent_s.items() if sent in fingerprints}

    def _stale(self, entry: Entry, now_s: float) -> bool:
        if self.receiver.resend_after_s is None or entry.track.state != "firing":
            return False
        # Unknown after a restart: send again, it does no harm.
        sent_s = self._sent_s.get(entry.fingerprint)
        return sent_s is None or now_s - sent_s >= self.receiver.resend_after_s

    def _failed(self, reason: str) -> None:
        pause_s = min(LONGEST_PAUSE_S, self._retry_after_s * (2 ** min(self._failures, 16) - 1))
        self._failures += 1
        self._not_before_s = self._began_s + pause_s
        if self._last_error != reason:
            self._last_error = reason
            self._report(f"{self.receiver.name}: not delivered so far: {reason}")

    def _worked(self) -> None:
        if self._last_error is not None:
            self._report(f"{self.receiver.name}: delivered after {self._failures} failed evaluations")
        self._last_error = None
        self._failures = 0
        self._not_before_s = None


def _news(entry: Entry, receiver: Receiver) -> bool:
    """Whether the receiver does not know the entry's state yet. Of an alert it never heard of, it need not hear the end."""
    told = entry.told.get(receiver.key)
    if entry.track.state == "firing":
        return told != "firing" or entry.knows.get(receiver.key, "") != entry.revision
    # Whoever hears of changes only keeps an incident open until it hears of the end: nobody has mended a run that crashed.
    only_forgotten = entry.name == CRASHED.alertname and bool(entry.ended_because) and receiver.resend_after_s is None
    return entry.track.state == "resolved" and told == "firing" and not only_forgotten
