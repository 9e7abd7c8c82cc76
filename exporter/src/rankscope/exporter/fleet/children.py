"""The processes that call the driver, as the daemon sees them: their messages, the call each is in, and their ends."""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from rankscope.exporter.fleet.call_board import CallBoard, new_board
from rankscope.exporter.fleet.nursery import Nursery
from rankscope.exporter.fleet.wire import Exited, FrameReader, FromChild, Kill, Spawn, SpawnProbe, Started

_READ_BYTES: Final = 1 << 16


class Child:
    """One process that calls the driver.

    It exits when its connection is closed, or is killed. ``exit_reason`` says how it exited, once the nursery has reaped it.
    """

    def __init__(self, number: int, connection: socket.socket, board: CallBoard, now: float) -> None:
        self.number = number
        self.pid: int | None = None
        self.exit_reason: str | None = None
        self.killed_at: float | None = None
        self.connection: socket.socket | None = connection
        self.board = board
        self.hung_up_at: float | None = None
        self.last_message_s = now
        self._reader = FrameReader()
        self._seen_call_ns = -1

    def read(self) -> list[FromChild] | None:
        """Return the messages received since the last call; None if the connection is closed or a message is invalid."""
        if self.connection is None:
            return None
        try:
            chunk = self.connection.recv(_READ_BYTES)
            return self._reader.feed(chunk) if chunk else None
        except BlockingIOError:
            return []
        except (OSError, ValueError, msgspec.MsgspecError):
            return None

    def hang_reason(self, now: float, *, deadline_s: float, silence_s: float) -> str | None:
        """Describe a hang: one call for longer than ``deadline_s``, or no call and no message for ``silence_s``; else None.

        Only the second overdue check in a row counts: after the whole node, daemon included, was stopped, no call is overdue yet.
        """
        began_ns = self.board.began_ns()
        since_s = now - (began_ns / 1e9 if began_ns else self.last_message_s)
        if since_s <= (deadline_s if began_ns else silence_s):
            self._seen_call_ns = -1
            return None
        if self._seen_call_ns != began_ns:
            self._seen_call_ns = began_ns
            return None
        if began_ns:
            return f"{self.board.call()} did not return within {deadline_s:g} s"
        return f"its process (pid {self.pid}) makes no driver call and has sent nothing for {silence_s:g} s"


class Children:
    """All processes that call the driver, by number. No method blocks."""

    def __init__(self, nursery: Nursery, selector: selectors.BaseSelector) -> None:
        self._nursery = nursery
        self._selector = selector
        self._by_number: dict[int, Child] = {}
        self._last_number = 0

    def __iter__(self) -> Iterator[Child]:
        return iter(tuple(self._by_number.values()))

    def spawn(self, request: Callable[[int], Spawn | SpawnProbe], now: float) -> Child:
        """Start a child. ``request`` maps its number to the message that starts it.

        Raises:
            NurseryLostError: the nursery died.
            OSError: no process, socket or memory could be created.
        """
        self._last_number += 1
        board_fd = new_board()
        try:
            daemon_end, child_end = socket.socketpair()
            with child_end:
                daemon_end.setblocking(False)
                child = Child(self._last_number, daemon_end, CallBoard(board_fd), now)
                try:
                    self._nursery.request(request(child.number), child_end.fileno(), board_fd)
                except OSError:
                    daemon_end.close()
                    child.board.close()
                    raise
        finally:
            os.close(board_fd)
        self._by_number[child.number] = child
        self._selector.register(daemon_end, selectors.EVENT_READ, child)
        return child

    def hang_up(self, child: Child, now: float) -> None:
        """Close the child's connection; it exits when it next polls it."""
        if child.connection is not None:
            self._selector.unregister(child.connection)
            child.connection.close()
            child.connection, child.hung_up_at = None, now

    def kill(self, child: Child, now: float) -> None:
        """Send SIGKILL once. A process stuck in the driver survives it."""
        self.hang_up(child, now)
        if child.killed_at is None:
            child.killed_at = now
            self._nursery.request(Kill(child.number))

    def handle(self, message: Started | Exited, now: float) -> tuple[Child, list[FromChild]] | None:
        """Handle a message of the nursery about a child. If the child exited, return it with its remaining messages."""
        child = self._by_number[message.child]
        if isinstance(message, Started):
            child.pid = message.pid
            return None
        messages: list[FromChild] = []
        while received := child.read():
            messages += received
        child.exit_reason = message.reason
        self.hang_up(child, now)
        child.board.close()
        del self._by_number[child.number]
        return child, messages

    def abandon(self, now: float) -> None:
        """Drop all children without killing them; the kernel kills those left when the nursery exits."""
        for child in self:
            self.hang_up(child, now)
            child.board.close()
        self._by_number.clear()
