"""The pipe through which a rank's helper requests dumps of its Flight Recorder."""

from __future__ import annotations

import os


class RequestPipe:
    """Both ends of the pipe, for tests without a rank."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)

    def received(self) -> list[str]:
        """Return the requests that the rank has received."""
        try:
            return os.read(self.reader, 1000).decode().split()
        except BlockingIOError:
            return []

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)
