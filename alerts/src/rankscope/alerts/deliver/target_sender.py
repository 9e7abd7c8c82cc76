"""Sends what waits for one target: in order, no faster than it wants, again when it failed, and never for ever."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from rankscope.alerts.deliver.courier import Courier
from rankscope.alerts.deliver.outbox_queue import Claimed, OutboxQueue, Outcome
from rankscope.alerts.deliver.retrying import Judgement, pause_s
from rankscope.alerts.deliver.target import Rate, Target
from rankscope.base.text import duration


class TokenBucket:
    """Token bucket: ``rate.count`` tokens refill evenly within ``rate.per_s`` seconds. Without a rate it is never empty.

    Times are nanoseconds of a monotonic clock.
    """

    def __init__(self, rate: Rate | None, *, now_ns: int) -> None:
        self._rate = rate
        self._tokens = rate.count if rate else math.inf
        self._filled_ns = now_ns

    def available(self, now_ns: int) -> float:
        """Return the number of available tokens; infinity without a rate."""
        if self._rate is not None:
            came = (now_ns - self._filled_ns) / 1e9 * self._rate.count / self._rate.per_s
            self._tokens = min(self._rate.count, self._tokens + max(0.0, came))
            self._filled_ns = now_ns
        return math.floor(self._tokens + 1e-9) if self._rate is not None else math.inf

    def take(self) -> None:
        """Take one token."""
        self._tokens -= 1

    def next_ns(self) -> int:
        """Return when the next token is available, if none is now."""
        if self._rate is None:
            return self._filled_ns
        missing = max(0.0, 1.0 - self._tokens)
        return self._filled_ns + math.ceil(missing * self._rate.per_s / self._rate.count * 1e9)


BATCH: Final = 32
"""Number of messages that are claimed, and whose outcomes are recorded, at once."""
TOLERATED: Final = 3
"""After this many failures in a row, of any messages, the target counts as failing."""
RECORD_AFTER_S: Final = 1.0
"""Outcomes are recorded at this interval, even if a slow receiver delays the rest of the batch."""


class TargetSender:
    """Sender of one target's messages. While the target fails as a whole, single messages probe it.

    ``clock`` returns monotonic nanoseconds; it schedules attempts. ``report`` takes one line when something changes.
    """

    def __init__(
        self,
        target: Target,
        queue: OutboxQueue,
        courier: Courier,
        *,
        clock: Callable[[], int],
        report: Callable[[str], None],
        chance: Callable[[], float] = random.random,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.target = target
        self.lost = 0
        """Messages given up since the start."""
        self.busy = False
        self._queue = queue
        self._courier = courier
        self._clock = clock
        self._report = report
        self._chance = chance
        self._stopping = stopping
        self._bucket = TokenBucket(target.rate, now_ns=clock())
        self._failures = 0
        self._pauses = 0
        self._not_before_ns = 0
        self._reason = ""
        self._said = ""
        self._unrecorded: list[Outcome] = []

    def run_due(self) -> int:
        """Send the messages that are due; returns the number of attempts. Raises ``StoreError``."""
        self.busy = True
        try:
            return self._run_due()
        finally:
            self.busy = False

    def next_ns(self) -> int | None:
        """Return when there is work again; ``None`` if no message waits. Raises ``StoreError``."""
        due = self._queue.next_due_ns(self.target.name)
        if due is None:
            return None
        due = max(due, self._not_before_ns)
        return due if self._bucket.available(self._clock()) >= 1 else max(due, self._bucket.next_ns())

    def _run_due(self) -> int:
        if self._unrecorded:
            self._record()
        reason = self._queue.disabled(self.target.name)
        if reason is not None:
            self._expire(self._clock() + 1, reason)
            return 0
        now = self._clock()
        if now < self._not_before_ns:
            return 0
        probe = self._pauses > 0
        most = int(min(BATCH, self._bucket.available(now)))
        if most < 1:
            return 0
        batch = self._queue.claim(self.target.name, now_ns=now, most=most, probe=probe)
        attempts = self._send(batch)
        if batch:
            self._record()
        if self._pauses:
            self._expire(self._clock() - int(self.target.retry_for_s * 1e9), self._too_long())
        return attempts

    def _send(self, batch: Sequence[Claimed]) -> int:
        """Send messages in order until the target fails as a whole. After a failed message the rest of its group is skipped."""
        attempts, recorded = 0, time.monotonic()
        failed_groups: set[str] = set()
        stopped = False
        for message in batch:
            if stopped or message.group in failed_groups or self._stopping():
                self._unrecorded.append(Outcome(message=message, state="unsent"))
                continue
            self._bucket.take()
            attempts += 1
            judgement = self._attempt(message)
            self._take_in(message, judgement)
            if judgement.kind == "retry":
                failed_groups.add(message.group)
            stopped = self._clock() < self._not_before_ns or judgement.kind == "gone"
            if time.monotonic() - recorded > RECORD_AFTER_S:
                self._record()
                recorded = time.monotonic()
        return attempts

    def _attempt(self, message: Claimed) -> Judgement:
        try:
            return self._courier.attempt(message.id, message.body)
        except msgspec.DecodeError:
            return Judgement(kind="dead", reason="cannot be sent: not to be read")
        except Exception as error:  # noqa: BLE001 - a bug in one message must not stop the others
            # This machine may be short of a resource for a while.
            return Judgement(kind="retry", reason=f"cannot be sent: {type(error).__name__}", heard=True)

    def _take_in(self, message: Claimed, judgement: Judgement) -> None:
        match judgement.kind:
            case "delivered":
                if self._failures and self._said:
                    self._report(f"{self.target.label}: delivered after {self._failures} failed attempts")
                self._works()
                self._said = ""
                self._unrecorded.append(Outcome(message=message, state="delivered", heard=True))
            case "retry":
                self._failed(message, judgement)
            case _:
                # The target answers: that it refuses this message means nothing for the others.
                self._works()
                self._give_up(message, judgement.reason, heard=judgement.heard)
                if judgement.kind == "gone":
                    self._queue.disable(self.target.name, judgement.reason)

    def _works(self) -> None:
        self._failures = 0
        self._pauses = 0
        self._not_before_ns = 0

    def _failed(self, message: Claimed, judgement: Judgement) -> None:
        now = self._clock()
        self._failures += 1
        self._reason = judgement.reason
        if judgement.throttle or self._pauses or self._failures >= TOLERATED:
            self._pauses += 1
            self._not_before_ns = now + self._wait_ns(self._pauses, judgement)
        if now - message.entered_ns > self.target.retry_for_s * 1e9:
            self._give_up(message, self._too_long(), heard=judgement.heard)
            return
        next_ns = now + self._wait_ns(message.attempts, judgement)
        self._unrecorded.append(
            Outcome(message=message, state="waiting", reason=self._reason, heard=judgement.heard, next_attempt_ns=next_ns)
        )
        self._say(f"not delivered so far: {self._reason}")

    def _give_up(self, message: Claimed, reason: str, *, heard: bool) -> None:
        self.lost += 1
        self._unrecorded.append(Outcome(message=message, state="dead", reason=reason, heard=heard))
        self._say_lost(reason)

    def _expire(self, entered_before_ns: int, reason: str) -> None:
        given_up = self._queue.expire(self.target.name, entered_before_ns=entered_before_ns, reason=reason)
        if given_up:
            self.lost += given_up
            self._say_lost(reason)

    def _say_lost(self, reason: str) -> None:
        self._say(f"not delivered: {reason}" + (f"; kept{self._queue.see}" if self._queue.see else ""))

    def _too_long(self) -> str:
        return f"not accepted within {duration(self.target.retry_for_s * 1e6)}: {self._reason}"

    def _wait_ns(self, failures: int, judgement: Judgement) -> int:
        wait_s = pause_s(failures, chance=self._chance())
        return int(max(wait_s, judgement.wait_s or 0.0) * 1e9)

    def _record(self) -> None:
        self._queue.record(self._unrecorded)
        self._unrecorded = []

    def _say(self, words: str) -> None:
        """Report a line once, until the line changes or a message is delivered."""
        if words != self._said:
            self._said = words
            self._report(f"{self.target.label}: {words}")
