"""Coordination on ranks other than 0: query rank 0's helper, and read its file while it cannot be reached."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from rankscope.profiler.helper.coordination.sidestore import (
    MAX_WINDOWS,
    SideClient,
    SideWindow,
    address_file,
    concerns,
    read_address,
)
from rankscope.profiler.helper.tasks import HelperContext
from rankscope.profiler.plan import RankReport, exchange_seconds
from rankscope.runs.paths import attempt_dir, segment
from rankscope.runs.records import PlannedWindow
from rankscope.runs.segments import open_regular

_MAX_READ: Final = 1 << 20
_FILE_SECONDS: Final = 3.0
"""Interval at which a rank that cannot reach the server reads the file."""
_AGAIN_SECONDS: Final = 60.0
"""Interval at which it tries the server again after ``_FAILURES`` failures."""
_FAILURES: Final = 3


class Asking:
    """Client of rank 0's helper on any other rank; it reads the file while the helper cannot be reached."""

    def __init__(self, context: HelperContext, hear: Callable[[Iterable[SideWindow]], None], *, since: int) -> None:
        hello = context.hello
        self._context = context
        self._hear = hear
        self._since = since
        self._folder = attempt_dir(Path(hello.settings.run_dir), context.info().attempt)
        self._period = exchange_seconds(hello.rank.world_size, hello.settings.plan_ahead_seconds)
        self._client: SideClient | None = None
        self._failures = 0
        self._offset = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="asking", daemon=True)
        self.report: RankReport | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread without waiting; one that hangs on a disk or a network ends with the process."""
        self._stop.set()

    def _work(self) -> None:
        try:
            self._ask_again_and_again()
        except Exception as error:  # noqa: BLE001  # nothing else reports errors of this thread
            self._context.report(f"asking rank 0 failed ({type(error).__name__}: {error}); windows it announces are left out")

    def _ask_again_and_again(self) -> None:
        again = time.monotonic()
        while not self._stop.wait(self._period):
            if self.report is None:
                continue
            now = time.monotonic()
            if now >= again:
                if self._ask(self.report):
                    self._failures, again = 0, now
                    continue
                self._failures += 1
                again = now + (self._period if self._failures <= _FAILURES else _AGAIN_SECONDS)
            self._read_file()
            if self._failures > _FAILURES:
                self._stop.wait(max(0.0, _FILE_SECONDS - self._period))

    def _ask(self, report: RankReport) -> bool:
        try:
            if self._client is None:
                self._client = SideClient(read_address(address_file(self._folder)))
            self._hear(self._client.exchange(report))
        except (OSError, ValueError):
            self._client = None  # the address may be another one next time
            return False
        return True

    def _read_file(self) -> None:
        """Pass on the windows announced since the last reading of the file; whole lines only."""
        try:
            with open_regular(segment(self._folder, "plan", 0), links=False) as file:
                file.seek(self._offset)
                data = file.read(_MAX_READ)
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole) or (len(data) if len(data) == _MAX_READ else 0)
        rank = self._context.hello.rank.rank
        # No more windows are planned ahead at a time, even if the file has more.
        windows = deque[SideWindow](maxlen=MAX_WINDOWS)
        for line in whole.splitlines():
            # As untrusted as network input: other users may be able to write the file.
            with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                planned, window = msgspec.json.decode(line, type=PlannedWindow), msgspec.json.decode(line, type=SideWindow)
                if window.first > self._since and concerns(planned, rank):
                    windows.append(msgspec.structs.replace(window, capture=planned.reason == "capture"))
        self._hear(windows)
