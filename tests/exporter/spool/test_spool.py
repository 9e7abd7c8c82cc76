"""The ranks of the spool: running, silent or disabled, the file that counts for a rank, and the spool through the exporter."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.exporter.conftest import StartExporter
from tests.exporter.spool.spool_files import GOOD, INFO, LABELS, R1, R2, gauge, gauged, spool_of, values_of
from tests.rank_file import rank_text

from rankscope.exporter.spool.file import parse
from rankscope.exporter.spool.reading import SpoolSample


def test_fresher_file_provides_a_duplicate_series(tmp_path: Path) -> None:
    (tmp_path / "a.prom").write_text(gauged(1))
    (tmp_path / "b.prom").write_text(gauged(2))
    os.utime(tmp_path / "a.prom", (1000, 1000))
    os.utime(tmp_path / "b.prom", (1050, 1050))

    sample = spool_of(tmp_path, now=lambda: 1060.0).read()

    assert values_of(sample) == [2.0]
    assert sample.duplicates == 2
    assert sample.states == {R1: "running"}


def test_a_stale_duplicate_does_not_make_a_running_rank_silent(tmp_path: Path) -> None:
    (tmp_path / "a.prom").write_text(GOOD)
    (tmp_path / "b.prom").write_text(GOOD)
    os.utime(tmp_path / "a.prom", (1000, 1000))
    os.utime(tmp_path / "b.prom", (2000, 2000))

    sample = spool_of(tmp_path, now=lambda: 2010.0).read()

    assert sample.states == {R1: "running"}
    assert {family.name for family in sample.families} == {"rank_info", "rank_steps_total", "rank_last_step_timestamp_seconds"}


def test_file_with_a_future_mtime_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.prom").write_text(GOOD)
    os.utime(tmp_path / "a.prom", (9000, 9000))

    sample = spool_of(tmp_path, now=lambda: 1000.0).read()

    assert sample.rejected == {"from_the_future": 1}
    assert sample.states == {}


class Clocks:
    """The wall clock of the files plus a step that the test sets, and a monotonic clock without the step."""

    def __init__(self) -> None:
        self.set_by_s = 0.0
        self.passed_s = 0.0

    def now(self) -> float:
        return time.time() + self.set_by_s + self.passed_s

    def monotonic(self) -> float:
        return time.monotonic() + self.passed_s


@pytest.mark.parametrize("step_s", [3600.0, 400_000.0, -3600.0, -400_000.0])
def test_clock_change_does_not_change_rank_states(step_s: float, tmp_path: Path) -> None:
    # given a rank that runs and one that is silent
    clocks = Clocks()
    spool = spool_of(tmp_path, now=clocks.now, monotonic=clocks.monotonic)
    (tmp_path / "running.prom").write_text(GOOD)
    (tmp_path / "silent.prom").write_text(GOOD.replace("r1", "r2"))
    long_ago = time.time() - 1000
    os.utime(tmp_path / "silent.prom", (long_ago, long_ago))
    states = {R1: "running", R2: "silent"}
    assert spool.read().states == states

    # when the clock is set, then nothing changes, even for a file that was written just before
    clocks.set_by_s = step_s
    assert spool.read().states == states
    clocks.set_by_s = 0
    spool.read()
    (tmp_path / "next").write_text(GOOD)
    (tmp_path / "next").replace(tmp_path / "running.prom")
    clocks.set_by_s = step_s
    sample = spool.read()
    assert (sample.states, sample.rejected) == (states, {})

    # and when the rank really stops, then it is reported as silent and later forgotten, each on time
    clocks.passed_s = 400
    assert spool.read().states == {R1: "silent", R2: "silent"}
    clocks.passed_s = 86400 - 900
    assert spool.read().states == {R1: "silent"}


def test_file_age_follows_a_changed_mtime(tmp_path: Path) -> None:
    spool = spool_of(tmp_path)
    (tmp_path / "a.prom").write_text(GOOD)
    assert spool.read().states == {R1: "running"}
    os.utime(tmp_path / "a.prom", (time.time() - 1000,) * 2)

    assert spool.read().states == {R1: "silent"}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of other users")
def test_run_belongs_to_the_first_user_that_published_files(tmp_path: Path) -> None:
    genuine = tmp_path / "mine.prom"
    genuine.write_text(gauged(1))
    os.chown(genuine, 1001, 1001)
    spool = spool_of(tmp_path)
    assert spool.read().ok_files == 1

    forged = tmp_path / "forged.prom"
    forged.write_text(gauged(2))
    os.chown(forged, 1002, 1002)
    sample = spool.read()

    assert values_of(sample) == [1.0]
    assert sample.rejected == {"foreign_owner": 1}
    assert sample.owners == {"id-r1": 1001}


def test_rewritten_file_is_read_again_and_removed_file_disappears(tmp_path: Path) -> None:
    spool = spool_of(tmp_path)
    file, replacement = tmp_path / "a.prom", tmp_path / ".a.tmp"
    for value in (1.0, 2.0):
        replacement.write_text(gauged(value))
        replacement.replace(file)
        assert values_of(spool.read()) == [value]

    file.unlink()

    assert spool.read().states == {}


def test_changed_values_are_read_and_unchanged_objects_are_reused(tmp_path: Path) -> None:
    def write(text: str) -> SpoolSample:
        (tmp_path / "next").write_text(text)
        (tmp_path / "next").replace(tmp_path / "a.prom")
        return spool.read()

    spool = spool_of(tmp_path)
    before = {item.metric: item for family in write(rank_text(40)).families for item in family.series}
    sample = write(rank_text(50))

    assert sample.families == tuple(sorted(parse(rank_text(50).encode()).families, key=lambda family: family.name))
    after = {item.metric: item for family in sample.families for item in family.series}
    assert after["rank_steps_total"].value == 50
    assert after["rank_info"] is before["rank_info"]
    assert after["rank_steps_total"].labels is before["rank_steps_total"].labels
    # an impossible value rejects the file, and the next valid file is read
    assert write(rank_text(60).replace('le="+Inf"} 60', 'le="+Inf"} 59')).rejected == {"wrong_histogram": 1}
    assert write(rank_text(60)).ok_files == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of other users")
def test_another_user_cannot_take_over_the_series_of_a_rank(tmp_path: Path) -> None:
    genuine, forged = tmp_path / "mine.prom", tmp_path / "forged.prom"
    genuine.write_text(gauged(1))
    os.chown(genuine, 1001, 1001)
    spool = spool_of(tmp_path)
    spool.read()
    forged.write_text(gauged(2).replace("id-r1", "id-r2"))
    os.chown(forged, 1002, 1002)

    for newer in (forged, genuine, forged):
        os.utime(newer)
        sample = spool.read()
        assert values_of(sample) == [1.0]
        assert sample.duplicates == 2

    # when the rank ends, its labels are free again
    genuine.unlink()
    assert values_of(spool.read()) == [2.0]


def test_restarted_run_in_the_same_file_updates_the_run_id(tmp_path: Path) -> None:
    spool = spool_of(tmp_path)
    for run_id in ("id-r1", "id-r2"):
        (tmp_path / "next").write_text(GOOD.replace("id-r1", run_id))
        (tmp_path / "next").replace(tmp_path / "a.prom")
        sample = spool.read()
        assert sample.states == {R1: "running"}
        assert [dict(item.labels)["run_id"] for family in sample.families[:1] for item in family.series] == [run_id]


def test_rank_with_a_disabled_recorder_has_state_disabled(tmp_path: Path) -> None:
    (tmp_path / "a.prom").write_bytes(INFO.encode() + gauge(name="rank_recorder_disabled"))
    (tmp_path / "b.prom").write_bytes(
        INFO.replace("r1", "r2").encode() + gauge(LABELS.replace("r1", "r2"), name="rank_recorder_disabled", value="0")
    )
    spool = spool_of(tmp_path)
    assert spool.read().states == {R1: "disabled", R2: "running"}

    long_ago = time.time() - 1000
    os.utime(tmp_path / "a.prom", (long_ago, long_ago))

    assert spool.read().states == {R1: "silent", R2: "running"}


@pytest.mark.slow
def test_rank_on_the_page_becomes_silent_and_is_then_forgotten(start_exporter: StartExporter, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    file = spool / "0-r1-3.prom"
    file.write_text(GOOD.replace("run_id=", 'host="node1",run_id='))

    # given a fresh file, when the page is scraped, then the rank's series are relayed unchanged
    exporter = start_exporter("--simulate", "1", "--interval", "0.2", "--spool-stale", "5m", "--spool-forget", "2h")
    assert exporter.values("rank_steps_total", run="r1", rank="3") == [40.0]
    assert exporter.values("rank_state", run="r1", rank="3", state="running") == [1.0]
    assert exporter.values("rankscope_exporter_spool_files", state="ok") == [1.0]

    # when the file is no longer written, then the rank is silent, and only its identity and last step are kept
    long_ago = time.time() - 3600
    os.utime(file, (long_ago, long_ago))
    exporter.wait_until(
        lambda: exporter.values("rank_state", run="r1", rank="3") == [1.0] and not exporter.values("rank_steps_total")
    )
    assert exporter.values("rank_state", run="r1", rank="3", state="silent") == [1.0]
    assert exporter.values("rank_last_step_timestamp_seconds", run="r1", rank="3") == [1.7e9]
    assert exporter.values("rank_info", host="node1") == [1.0]
    assert exporter.values("rankscope_exporter_spool_files", state="stale") == [1.0]

    # when the silence lasts, then the rank is forgotten
    os.utime(file, (long_ago - 7200, long_ago - 7200))
    exporter.wait_until(lambda: exporter.values("rank_state") == [])
    assert exporter.values("rankscope_exporter_spool_files", state="stale") == [0.0]


@pytest.mark.slow
def test_hostile_files_are_rejected_without_affecting_others(start_exporter: StartExporter, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / "good.prom").write_text(GOOD)
    (tmp_path / "secret").write_text(GOOD.replace("r1", "stolen"))
    (spool / "link.prom").symlink_to(tmp_path / "secret")
    os.mkfifo(spool / "fifo.prom")
    (spool / "folder.prom").mkdir()
    with (spool / "huge.prom").open("wb") as huge:
        huge.truncate(10 * 2**30)
    (spool / "binary.prom").write_bytes(bytes(range(256)))
    (spool / "prefix.prom").write_text("# TYPE node_load1 gauge\nnode_load1 99\n")
    (spool / "exporters-own.prom").write_bytes(gauge(name="rankscope_exporter_simulated"))
    (spool / "state.prom").write_bytes(gauge(LABELS + ',state="running"', name="rank_state"))
    (spool / "state-total.prom").write_bytes(gauge(name="rank_state_total"))
    (spool / "other-name.txt").write_text("not for us")
    (spool / "overflow.prom").write_bytes(gauge(value="9" * 400))
    # a label with quotes is escaped when it is relayed
    forger = 'run="r9",rank="3",slot="0",run_id="x\\"} 1\\ngpu_up{uuid=\\"forged"'
    (spool / "forger.prom").write_bytes(gauge(forger, name="rank_info"))

    exporter = start_exporter("--simulate", "1")

    assert exporter.values("rank_steps_total") == [40.0]
    assert exporter.values("gpu_up") == [1.0]
    assert exporter.values("rankscope_exporter_collector_success", collector="spool") == [1.0]
    assert exporter.values("rankscope_exporter_spool_files", state="ok") == [2.0]
    assert exporter.values("rank_info", run_id='x"} 1\ngpu_up{uuid="forged') == [1.0]
    rejected = {
        dict(labels)["reason"]: value
        for (name, labels), value in exporter.page().items()
        if name == "rankscope_exporter_spool_rejected_files"
    }
    assert rejected == {"not_regular": 3, "too_large": 1, "not_utf8": 1, "wrong_name": 4, "not_prometheus_text": 1}
    page = exporter.get("/metrics").text
    assert "node_load1" not in page
    assert "stolen" not in page
    # the log names each once, /-/ready lists them all, and neither has their content
    ready = exporter.get("/-/ready")
    assert ready.status == 200
    reasons = {"link.prom": "not_regular", "huge.prom": "too_large", "binary.prom": "not_utf8", "prefix.prom": "wrong_name"}
    exporter.wait_until(lambda: all(f"file={name}" in exporter.stderr for name in reasons))
    time.sleep(2.5)  # further readings
    for name, reason in reasons.items():
        (line,) = (line for line in exporter.stderr.splitlines() if name in line)
        assert f"uid={os.getuid()} reason={reason}" in line
        (line,) = (line for line in ready.text.splitlines() if name in line)
        assert reason in line
    assert "node_load1" not in exporter.stderr + ready.text
