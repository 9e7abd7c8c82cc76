"""A watcher killed at any moment and restarted still delivers every change and records it once in the run."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.alerts.watch.watched_world import MakeWorld, RecordingWebhook, World, analysis_of
from tests.command_line import Cli, one_line_error
from tests.waiting import wait_until
from tests.watched_job import WatchProcess

from rankscope.alerts.watch import announcements as announcing
from rankscope.alerts.watch.announcements import FINDING_SCHEMA, FindingRecord, append_finding, is_logged
from rankscope.alerts.watch.ledger import AlertLedger

RECORD = FindingRecord(schema=FINDING_SCHEMA, time_unix_ns=7, status="firing", fingerprint="f", labels={"a": "b"}, annotations={})


class KilledError(BaseException):
    """Stands for a kill: a ``BaseException``, so that no code handles it."""


class Reaper:
    """Kills the watcher at one of the moments before or after an output leaves the process."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.moments = 0

    def around(self, act: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``act`` in two moments, one before and one after it."""

        def acting(*args: Any, **kwargs: Any) -> Any:
            self.pass_by()
            result = act(*args, **kwargs)
            self.pass_by()
            return result

        return acting

    def pass_by(self) -> None:
        self.moments += 1
        if self.moments == self.at:
            raise KilledError


def lines_of(run: Path) -> list[tuple[str, str]]:
    """Return status and rank of each line of ``findings.jsonl``."""
    rows = [msgspec.json.decode(line) for line in (run / "findings.jsonl").read_bytes().splitlines()]
    assert all(row["finding"] is not None for row in rows if row["status"] == "firing")
    return [(row["status"], row["labels"]["rank"]) for row in rows]


def followed(make_run: Any, monkeypatch: pytest.MonkeyPatch, reaper: Reaper, name: str) -> tuple[Any, RecordingWebhook]:
    """Follow two ranks that become slow and recover, with a watcher that is killed once and restarted."""
    run, webhook = make_run(name), RecordingWebhook()
    monkeypatch.setattr(announcing, "append_finding", reaper.around(append_finding))
    saved: list[bytes] = [msgspec.json.encode(AlertLedger())]

    def start(before: World | None) -> World:
        world = World(run, receiver=webhook, ledger=msgspec.json.decode(saved[-1], type=AlertLedger))
        # The next watcher loads the last saved ledger; after a kill during the save, the one before.
        saving = reaper.around(lambda ledger: saved.append(msgspec.json.encode(ledger)))
        world.watcher._save = world.watcher._announcer._save = saving
        monkeypatch.setattr(world.watcher._delivery, "deliver", reaper.around(world.watcher._delivery.deliver))
        world.now_s = world.now_s if before is None else before.now_s
        return world

    world = start(None)
    for answer in [analysis_of(2, 3)] * 3 + [analysis_of()] * 3:
        while True:
            try:
                world.advance(answer)
            except KilledError:
                world = start(world)
                continue
            break
    return run, webhook


@pytest.mark.full
@pytest.mark.slow
def test_watcher_killed_at_any_moment_logs_each_change_once(make_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    never = Reaper(0)
    followed(make_run, monkeypatch, never, "never")
    assert never.moments >= 24
    for at in range(1, never.moments + 1):
        run, webhook = followed(make_run, monkeypatch, Reaper(at), f"run-{at}")
        assert sorted(lines_of(run.path)) == [("firing", "2"), ("firing", "3"), ("resolved", "2"), ("resolved", "3")], at
        for rank in ("2", "3"):
            heard = [status for status, of in webhook.heard if of == rank]
            # A receiver notified at the moment of the kill may be notified again, with the same identity and start.
            assert (heard[0], heard[-1]) == ("firing", "resolved"), at
            assert heard == sorted(heard), at
        for call in webhook.calls:
            assert {notice.alert.fingerprint for notice in call} <= {notice.alert.fingerprint for notice in webhook.calls[0]}


def test_truncated_line_does_not_damage_later_lines(make_run: Any) -> None:
    run = make_run().path
    (run / "findings.jsonl").write_bytes(b'{"schema": "rankscope.fin')
    append_finding(run, RECORD)
    append_finding(run, RECORD)
    torn, *lines = (run / "findings.jsonl").read_bytes().splitlines()
    assert torn == b'{"schema": "rankscope.fin'
    assert [msgspec.json.decode(line, type=FindingRecord) for line in lines] == [RECORD, RECORD]
    assert is_logged(run, RECORD)
    assert not is_logged(run, msgspec.structs.replace(RECORD, status="resolved"))


def put_link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def put_pipe(path: Path, _target: Path) -> None:
    os.mkfifo(path)


def put_folder(path: Path, _target: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("put", [put_link, put_pipe, put_folder])
def test_another_users_link_or_pipe_in_a_run_is_not_written_to(
    make_world: MakeWorld, tmp_path: Path, put: Callable[[Path, Path], None]
) -> None:
    world = make_world()
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    put(world.run.path / "findings.jsonl", target)
    world.advance(analysis_of(2), times=4)
    assert world.heard == [("firing", "2")]
    assert target.read_bytes() == b"precious"
    [line] = world.reports
    assert "findings.jsonl cannot be written" in line


def test_findings_file_follows_the_permissions_of_the_run(make_run: Any) -> None:
    run = make_run().path
    run.chmod(0o750)
    append_finding(run, RECORD)
    assert stat.S_IMODE((run / "findings.jsonl").stat().st_mode) == 0o640


@pytest.mark.slow
def test_second_watcher_of_a_folder_exits_with_an_error(make_run: Any, cli: Cli, tmp_path: Path) -> None:
    run, state = make_run(), tmp_path / "state"
    watch = ["alerts", "watch", run.path, "--state", state]
    with WatchProcess(run.path, "--state", state):
        wait_until((state / "alerts.sqlite.lock").exists)
        second = cli(*watch)
        assert "another watcher" in one_line_error(second)
        assert cli(*watch, "--once").returncode == 0
    # A killed watcher holds no lock
    run.end()
    assert cli(*watch).returncode == 0
