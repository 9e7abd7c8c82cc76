"""Signals to the watcher: SIGTERM and SIGINT at any moment cut no change in two, SIGHUP reads the configuration again."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.alerts.receive.receiver_process import listening_target
from tests.command_line import Cli
from tests.waiting import wait_until
from tests.watched_job import AT_ONCE, WatchProcess

from rankscope.alerts.watch.signals import SignalHandlers, StoppedError


def test_signal_interrupts_only_interruptible_sections() -> None:
    collected: list[str] = []
    with SignalHandlers() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        collected.append("a change")
        assert signals.stopping
        with pytest.raises(StoppedError), signals.interruptible():
            collected.append("not reached")
    with SignalHandlers() as signals:
        with pytest.raises(StoppedError), signals.interruptible():
            signal.raise_signal(signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # a second one does not interrupt what follows
    assert collected == ["a change"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_a_sleep(number: signal.Signals) -> None:
    with SignalHandlers() as signals:
        began = time.monotonic()
        threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
        signals.wait(60)
        assert time.monotonic() - began < 30
        assert (signals.stopping, signals.take_reload()) == (number == signal.SIGTERM, number == signal.SIGHUP)
        assert not signals.take_reload()


class Moments:
    """Sends this process a signal after the statement ``at`` of the main thread, counted from 1."""

    def __init__(self) -> None:
        self.at = 0
        self.count = 0

    def connection(self) -> type[sqlite3.Connection]:
        moments = self

        class Connection(sqlite3.Connection):
            def execute(self, *statement: Any) -> sqlite3.Cursor:
                completed = super().execute(*statement)
                if threading.current_thread() is threading.main_thread():
                    moments.count += 1
                    if moments.count == moments.at:
                        os.kill(os.getpid(), signal.SIGTERM)
                return completed

        return Connection


@pytest.mark.full
@pytest.mark.slow
def test_signal_during_a_transaction_causes_no_duplicate_delivery(
    make_run: Any, cli: Cli, sink: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = Moments()
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *how, **more: connect(*how, **more, factory=moments.connection()))
    run = make_run(slow=2, ended=True)

    def watch(state: str, at: int) -> None:
        moments.at, moments.count = at, 0
        completed = cli("alerts", "watch", run.path, "--webhook", sink.url, "--state", tmp_path / state)
        assert completed.returncode == 0, completed.stderr
        assert "level=warn" not in completed.stderr

    watch("never", 0)
    assert moments.count > 30
    for at in range(1, moments.count, 7):
        sink.accepted.clear()
        for moment in (at, 0):
            watch(f"at-{at}", moment)
        alerts = [alert for payload in sink.accepted for alert in payload["alerts"]]
        result = Counter((alert["fingerprint"], alert["startsAt"], alert["status"]) for alert in alerts)
        assert set(result.values()) <= {1}, at


@pytest.mark.slow
def test_sighup_reloads_the_targets(make_run: Any, tmp_path: Path) -> None:
    run, config = make_run(slow=2), tmp_path / "alerts.toml"
    with listening_target() as first, listening_target() as second:
        config.write_text(f'[[target]]\nname = "chat"\nurl = "{first.url}"\n')
        with WatchProcess(run.path, *AT_ONCE, "--config", config, "--state", tmp_path / "state") as watch:

            def firing() -> bool:
                run.grow(2)
                return bool(first.alerts)

            wait_until(firing)
            # an unusable file changes nothing
            config.write_text("[[target]")
            watch.process.send_signal(signal.SIGHUP)
            wait_until(lambda: "stays as it was" in watch.errors())
            config.write_text(f'[[target]]\nname = "chat"\nurl = "{second.url}"\n')
            watch.process.send_signal(signal.SIGHUP)
            wait_until(lambda: "was read again" in watch.errors())
            run.end()
            assert watch.process.wait(120) == 0
        assert [alert["status"] for alert in first.alerts] == ["firing"]
        assert [alert["status"] for alert in second.alerts] == ["resolved"]


@pytest.mark.slow
def test_sighup_without_a_configuration_is_ignored(make_run: Any, tmp_path: Path) -> None:
    with WatchProcess(make_run(slow=None).path, *AT_ONCE, "--log-format", "json", "--state", tmp_path / "state") as watch:
        wait_until(lambda: "watching" in watch.errors())
        watch.process.send_signal(signal.SIGHUP)
        wait_until(lambda: '"level": "info"' in watch.errors() and "no --config" in watch.errors())
        watch.process.terminate()
        assert watch.process.wait(120) == 0
