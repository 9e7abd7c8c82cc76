"""Files that released versions wrote, kept in tests/data/released: this version reads all of them."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import Cli, one_line_error
from tests.webhook_receiver import receiving

from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.deliver.secret import Secret
from rankscope.alerts.deliver.sender import Sender
from rankscope.alerts.deliver.targets import Target
from rankscope.alerts.store.database import AlertStore
from rankscope.alerts.store.folders import STORE_FILE
from rankscope.alerts.watch.ledger import load_ledger
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.exporter.fleet.inventory import Inventory
from rankscope.exporter.xid.journal import XidJournal
from rankscope.runs.reader import RunReader

RELEASED = Path(__file__).resolve().parents[1] / "data" / "released"
VERSIONS = sorted(path.name for path in RELEASED.iterdir())


@pytest.fixture(params=VERSIONS)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Copy of the files of one version: ``run``, ``alerts``, ``exporter``."""
    folder = tmp_path / str(request.param)
    shutil.copytree(RELEASED / request.param, folder)
    (folder / "alerts").mkdir()
    (folder / "alerts" / STORE_FILE).write_bytes(gzip.decompress((folder / "alerts.sqlite.gz").read_bytes()))
    return folder


def test_data_of_the_first_release_is_kept() -> None:
    assert "0.1.0" in VERSIONS


def test_every_record_of_a_released_run_is_read(kept: Path) -> None:
    run = RunReader(kept / "run")
    attempt = run.attempt(0)
    assert attempt is not None
    assert (run.attempts(), attempt.world_size, attempt.versions["rankscope"]) == ([0], 2, kept.name)
    assert [(info.host, info.end_reason) for info in run.infos(0).values()] == [("node0", "exit")] * 2
    for rank in (0, 1):
        steps = list(run.steps(0, rank))
        assert [record.step for record in steps] == list(range(24))
        assert all(record.wall_us > 0 and record.phases_us.data is not None for record in steps)
        assert [window.step for window in run.windows(0, rank)] == [8, 9, 10]
        assert {collective.step for collective in run.collectives(0, rank)} == {8, 9, 10}
        assert {kernel.step for kernel in run.kernels(0, rank)} == {8, 9, 10}
        assert [block.duration_us for block in run.durations(0, rank)] == [[20.0, 21.0]]
    assert [(event.step, event.tags) for event in run.events(0, 0)] == [(5, ["eval"])]
    assert [line.call for stack in run.stacks(0, 1) for line in stack.lines] == ["time.sleep"]
    assert [(window.first, window.steps) for window in run.plan(0)] == [(8, 3)]
    assert [sample.gpu_index for sample in run.hardware("node0")] == [0, 1] * 3
    assert (run.skipped_lines, run.unusable) == (0, [])


def test_released_run_is_analysed(kept: Path, cli: Cli) -> None:
    completed = cli("analyze", kept / "run", "--format", "json")
    assert (completed.returncode, completed.stderr) == (0, "")
    report = json.loads(completed.stdout)
    verdict, source = report["verdict"], report["source"]
    assert (verdict["kind"], verdict["rank"], verdict["cause"], verdict["phase"]) == ("straggler", 1, "input", "data")
    assert (source["ranks"], source["steps"], source["coverage"]) == (2, 24, 1.0)
    assert (report["collectives"]["matched"], report["collectives"]["unmatched"]) == (3, 0)


def test_dashboard_reads_a_released_run(kept: Path) -> None:
    runs = DiskRuns(kept)
    (summary,) = runs.runs()
    assert (summary.status, summary.world_size, summary.ranks) == ("finished", 2, 2)
    assert runs.part(summary.run_id, "analysis").verdict.rank == 1
    assert runs.part(summary.run_id, "steps").part("own_us").values.shape == (2, 24)
    assert len(runs.part(summary.run_id, "hardware").gpus) == 2
    assert "TrainingStraggler" in str(runs.alerts(summary.run_id))


def test_waiting_message_of_a_released_store_is_delivered(kept: Path, cli: Cli) -> None:
    # given a store in which a message waits, and the time of its next attempt
    state = kept / "alerts"
    with sqlite3.connect(state / STORE_FILE) as database:
        [(message, due_ns)] = database.execute("SELECT id, next_attempt_ns FROM messages WHERE state = 'waiting'").fetchall()
    database.close()
    (listing,) = json.loads(cli("alerts", "outbox", "list", "--state", state, "--format", "json").stdout)["outboxes"]
    assert listing["counts"] == {"waiting": 1}
    with receiving() as receiver, AlertStore(state, report=pytest.fail, clock=lambda: due_ns) as store:
        (entry,) = load_ledger(store).entries
        assert (entry.alert.labels["alertname"], entry.alert.labels["rank"]) == ("TrainingStraggler", "1")
        # when a sender has a target of that name
        target = Target(name="oncall", label="oncall", url=Secret(value=receiver.url))
        assert Sender(Outbox(store), [target], report=pytest.fail).run_due() == 1
        # then it receives the message under its id
        assert (receiver.ids, receiver.states) == ([message], [("1", "firing")])
        assert Outbox(store).counts() == {("oncall", "delivered"): 1}


def test_exporter_reads_released_gpu_inventory_and_xids(kept: Path) -> None:
    folder = kept / "exporter"
    inventory = Inventory(folder)
    assert (inventory.durable, [gpu.uuid for gpu in inventory.identities()]) == (True, ["GPU-0", "GPU-1"])
    journal = XidJournal(folder, job_at=lambda _: None, boot_id="boot-1")
    assert (journal.problem, journal.skipped_lines) == (None, 0)
    assert [(entry.uuid, entry.code, entry.job_id) for entry in journal.entries()] == [
        ("GPU-1", code, "4711") for code in (79, 79, 31)
    ]
    counts = {
        dict(sample.labels)["xid"]: sample.value
        for sample in journal.series(inventory.identities())
        if sample.metric == "gpu_xid_errors_total" and sample.value > 0
    }
    assert (counts["79"], counts["31"]) == (2, 1)
    journal.close()


def test_doctor_shows_formats_and_the_recording_version(kept: Path, cli: Cli) -> None:
    result = checks(cli, kept, kept / "alerts", kept / "exporter")
    state, detail = result[str(kept / "run")]
    assert "rankscope.run/" in detail
    assert kept.name in detail
    assert (state, version("rankscope") in detail) == ("ok" if version("rankscope") == kept.name else "other", True)
    files = {str(kept / name): name for name in ("alerts/alerts.sqlite", "exporter/gpus.json", "exporter/xids.jsonl")}
    assert {path: result[path][0] for path in files} == dict.fromkeys(files, "ok")


def newer_run(kept: Path) -> Path:
    file = kept / "run" / "run.json"
    file.write_text(file.read_text().replace("rankscope.run/2", "rankscope.run/99"))
    return kept / "run"


def newer_store(kept: Path) -> Path:
    with sqlite3.connect(kept / "alerts" / STORE_FILE) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    return kept / "alerts"


def newer_gpus(kept: Path) -> Path:
    (kept / "exporter" / "gpus.json").write_text('{"schema": "rankscope.gpus/99", "gpus": {}}')
    return kept / "exporter"


def newer_xids(kept: Path) -> Path:
    (kept / "exporter" / "xids.jsonl").write_text('{"type": "snapshot", "format": "rankscope.xids/99"}\n')
    return kept / "exporter"


@pytest.mark.parametrize("make", [newer_run, newer_store, newer_gpus, newer_xids])
def test_newer_format_is_reported_with_the_supported_one_and_upgrade_hint(
    kept: Path, cli: Cli, make: Callable[[Path], Path]
) -> None:
    path = make(kept)
    completed = cli("doctor", path)
    (line,) = [line for line in completed.stdout.splitlines() if line.startswith("UNREAD")]
    assert re.search(r"rankscope\.[a-z-]+/99.*rankscope \d+\.\d+.*rankscope\.[a-z-]+/\d\b.*upgrade rankscope", line)
    assert completed.returncode == 1


def test_doctor_rejects_a_folder_without_rankscope_files(cli: Cli, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        assert str(path) in one_line_error(cli("doctor", path))


def checks(cli: Cli, *paths: Path) -> dict[str, tuple[str, str]]:
    report: dict[str, Any] = json.loads(cli("doctor", *paths, "--format", "json").stdout)
    return {check["name"]: (check["state"], check["detail"]) for check in report["checks"]}
