"""The spool through the whole exporter: files of ranks are on the page, other files in the folder are not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.exporter.conftest import RunningExporter
from tests.exporter.spool.spool_files import GOOD, LABELS, gauge

pytestmark = pytest.mark.slow  # each starts real processes


def test_a_rank_on_the_page_and_its_silence(start_exporter: Callable[..., RunningExporter], tmp_path: Path) -> None:
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


def test_hostile_files_cost_themselves_only(start_exporter: Callable[..., RunningExporter], tmp_path: Path) -> None:
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
