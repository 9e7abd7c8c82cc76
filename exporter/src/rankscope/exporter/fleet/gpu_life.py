"""States of one GPU, and the table of transitions between them.

    waiting ─ started ─▶ opening ─ opened ─▶ sampling
    absent                  │                   │
    released                └─────────┬─────────┘
                                      │ failed, disconnected, dismissed, hung
                                      ▼
                exiting, disconnected, closing ─ overdue ─▶ killed ─ overdue ─▶ stuck

In the first column there is no process; ``exited`` leads there from every other state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

State = Literal[
    "waiting",  # for the next attempt
    "absent",  # the driver or the PCI bus does not show the GPU
    "released",
    "opening",
    "sampling",
    "exiting",  # its process has reported a failure and exits by itself
    "disconnected",  # its process closed the connection, or sent nonsense
    "closing",  # its process was asked to exit
    "killed",
    "stuck",  # its process does not exit after SIGKILL
]

Event = Literal[
    "started",
    "opened",
    "failed",
    "disconnected",
    "dismissed",
    "hung",
    "overdue",
    "exited",
    "absent",
    "present",
    "released",
    "resumed",
]

WITHOUT_PROCESS: Final[tuple[State, ...]] = ("waiting", "absent", "released")
READING: Final[tuple[State, ...]] = ("opening", "sampling")
LEAVING: Final[tuple[State, ...]] = ("exiting", "disconnected", "closing")


def _from(states: tuple[State, ...], to: State) -> dict[State, State]:
    return dict.fromkeys(states, to)


TRANSITIONS: Final[Mapping[Event, Mapping[State, State]]] = {
    "started": {"waiting": "opening"},
    "opened": {"opening": "sampling"},
    "failed": _from(READING, "exiting"),
    "disconnected": _from(READING, "disconnected"),
    "dismissed": _from((*READING, "exiting", "disconnected"), "closing"),
    "hung": _from(READING, "killed"),
    "overdue": _from(LEAVING, "killed") | {"killed": "stuck"},
    "exited": _from((*READING, *LEAVING, "killed", "stuck"), "waiting"),
    "absent": _from(("waiting", "released"), "absent"),
    "present": {"absent": "waiting"},
    "released": _from(("waiting", "absent"), "released"),
    "resumed": {"released": "waiting"},
}
"""Next state by event and state. In a state without an entry, an event changes nothing."""
