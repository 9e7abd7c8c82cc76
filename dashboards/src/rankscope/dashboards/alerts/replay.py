"""Replay of all alerts over a run: one replay evaluates all of them, so it is computed once."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from rankscope.alerts.replay.replay import replay_run
from rankscope.alerts.replay.result import Replay
from rankscope.dashboards.data.cached_files import read_json
from rankscope.dashboards.data.progress import Progress, Tell
from rankscope.dashboards.words.inert import inert_record

REPLAY: Final = "replay.json"


def make_replay(run: Path, folder: Path, tell: Tell) -> None:
    """Replay the watcher over ``run`` and write the result into ``folder``.

    Raises ``RankscopeError``, and ``OSError`` if it cannot write.
    """
    tell(Progress("replaying the watcher: reading the run"))
    words = "replaying the watcher, percent of the run's time"
    result = replay_run(run, progress=lambda percent: tell(Progress(words, percent, 100)))
    (folder / REPLAY).write_bytes(msgspec.json.encode(inert_record(result)))


def read_replay(folder: Path) -> Replay:
    """Read the replay that ``make_replay`` wrote. Raises ``InputError``."""
    return read_json(folder / REPLAY, Replay, "the cached replay")
