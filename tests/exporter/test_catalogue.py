"""The page has exactly the metrics of the catalogue, the table of Xids is complete, and the documentation has both."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.command_line import Cli
from tests.exporter.conftest import StartExporter
from tests.exporter.fake_driver import FakeDriver, mixed_gpus, uuid_of
from tests.exporter.jobs.job_node import slurm_folder
from tests.rank_file import rank_text

from rankscope.exporter.catalogue import BY_NAME, CATALOGUE, COLLECTORS
from rankscope.exporter.reference import TABLES, with_tables
from rankscope.exporter.xids import ACTIONABLE, CRITICAL, FALLEN_OFF_THE_BUS, GRADED, SOURCE, SOURCES, XIDS
from rankscope.runs.metrics import RANK_METRICS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
UNIT = ROOT / "exporter" / "systemd" / "rankscope-exporter.service"


def test_names_follow_the_conventions() -> None:
    assert len(BY_NAME) == len(CATALOGUE)
    for row in CATALOGUE:
        assert re.fullmatch(r"(gpu|nvswitch|node|rank|rankscope_exporter)_[a-z0-9_]+", row.name), row.name
        assert row.name.endswith("_total") == (row.type == "counter"), row.name
        assert row.unit in row.name.removesuffix("_total").split("_") or not row.unit, row.name
        assert row.unit in {"", "celsius", "bytes", "ratio", "watts", "joules", "hertz", "seconds"}, row.name
        assert row.labels[:1] == ("uuid",) or row.group not in ("gpu", "job"), row.name
        assert row.help.endswith("."), row.name
        assert row.collector in {*COLLECTORS, "exporter"}, row.name
    # OpenMetrics knows a counter by its name without _total
    assert len({row.name.removesuffix("_total") for row in CATALOGUE}) == len(CATALOGUE)


def test_every_collector_has_metrics_and_a_description() -> None:
    brought = {row.collector for row in CATALOGUE} - {"exporter"}
    assert brought == COLLECTORS.keys()
    for collector in COLLECTORS.values():
        assert collector.help.endswith("."), collector.name
    assert {name for name, collector in COLLECTORS.items() if not collector.default_on} == {
        "nvlink_link",
        "process",
        "encoder",
        "pcie_throughput",
        "retired_pages",
        "p2p",
    }


# Metrics that the fake H100, A100 and H100 with MIG lack, or that come from another part of the machine.
ELSEWHERE = {
    "gpu_fan_speed_ratio": "boards without fans",
    "gpu_vgpu_license_status": "no vGPU guest",
    "gpu_retired_pages": "newer than that",
    "gpu_retired_pages_pending": "newer than that",
    "gpu_c2c_errors_total": "no Grace CPU",
    "gpu_nvlink_recoveries_total": "Blackwell",
    "gpu_nvlink_physical_errors_total": "Blackwell",
    "gpu_p2p_status": "the GPUs have no peers in the fake",
    "gpu_job_info": "no job",
    "gpu_allocated": "neither Slurm nor a kubelet",
    "rankscope_exporter_jobs_source_ok": "neither Slurm nor a kubelet",
    "gpu_xid_last_job_info": "no job",
    "gpu_tenant_info": "no shared GPU",
    "gpu_tenant_memory_used_bytes": "no shared GPU",
    "gpu_tenant_sm_utilization_ratio": "no shared GPU",
    "nvswitch_sxid_errors_total": "the kernel log",
    "nvswitch_sxid_last_timestamp_seconds": "the kernel log",
    "nvswitch_devices": "the PCI bus",
    "rankscope_exporter_driver_problem_info": "a driver that does not answer",
    "rankscope_exporter_kernel_log_readable": "the kernel log",
    "rankscope_exporter_kernel_log_lost_lines_total": "the kernel log",
}


@pytest.fixture
def node(fake_nvml_library: Path, tmp_path: Path) -> FakeDriver:
    """Fake driver with an H100, an A100, an H100 with MIG, and a second H100 that the test makes hang."""
    return FakeDriver(tmp_path / "driver", fake_nvml_library, mixed_gpus())


@pytest.mark.slow
def test_page_and_catalogue_have_the_same_metrics_and_labels(
    start_exporter: StartExporter, node: FakeDriver, tmp_path: Path
) -> None:
    # given a node with data for every metric that the fake driver can show
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "a.prom").write_text('# TYPE rank_info gauge\nrank_info{run="r",rank="0",slot="0",run_id="r"} 1\n')
    (tmp_path / "spool" / "b.prom").write_text("nonsense")
    everything = [f"--collector.{name}" for name in COLLECTORS if name != "p2p"]
    exporter = start_exporter(
        *everything, "--call-timeout", "3s", "--state-dir", tmp_path / "state", "--no-xid.kernel-log", env=node.env
    )
    exporter.wait_until(lambda: len(exporter.values("gpu_sm_active_ratio")) == 3)
    exporter.wait_until(lambda: exporter.values("gpu_nvlink_errors_total") != [])

    # when a GPU has an Xid error, and another hangs
    node.xid(0, 79, 149)
    exporter.wait_until(lambda: 1 in exporter.values("gpu_xid_errors_total", xid="79"))
    exporter.wait_until(lambda: 1 in exporter.values("gpu_xid_errors_total", xid="149", severity="unknown"))
    node.hang("nvmlDeviceGetPowerUsage", gpu=3)
    exporter.wait_until(lambda: exporter.values("gpu_down_info", reason="hung") == [1])

    shown: dict[str, set[str]] = {}
    for name, labels in exporter.page():
        shown.setdefault(name, set()).update(label for label, _ in labels)
    assert shown.keys() - {"rank_info"} <= BY_NAME.keys()
    assert BY_NAME.keys() - shown.keys() == ELSEWHERE.keys()
    for row in CATALOGUE:
        assert shown.get(row.name, set(row.labels)) == set(row.labels), row.name


@pytest.mark.parametrize("page", TABLES)
def test_the_documentation_is_current(page: str) -> None:
    document = (DOCS / page).read_text()
    assert document == with_tables(page, document), "run: python -m rankscope.exporter.reference docs"


@pytest.mark.parametrize("page", TABLES)
def test_a_page_without_its_markers_is_an_error(page: str) -> None:
    opening, closing, _ = TABLES[page]
    for lacking in ("a document without markers", opening, f"{closing} {opening}"):
        with pytest.raises(ValueError, match="no "):
            with_tables(page, lacking)
    assert "\nold\n" not in with_tables(page, f"{opening}\nold\n{closing}")


def test_every_option_and_every_reason_is_documented() -> None:
    document = (DOCS / "exporter-jobs.md").read_text()
    reasons = re.findall(
        r'RejectedError\("([a-z0-9_]+)"',
        "".join((ROOT / "exporter/src/rankscope/exporter/spool" / name).read_text() for name in ("file.py", "reading.py")),
    )
    assert len(set(reasons)) > 10
    assert [reason for reason in reasons if f"`{reason}`" not in document] == []
    assert "rankscope exporter --help" in (DOCS / "exporter.md").read_text()


@pytest.mark.slow
def test_documented_commands_work(cli: Cli, tmp_path: Path) -> None:
    commands = re.findall(r"^rankscope (exporter .*--once)", (DOCS / "exporter.md").read_text(), flags=re.MULTILINE)
    assert commands
    for line in commands:
        assert cli(*shlex.split(line), "--spool", tmp_path / "spool").returncode == 0


def test_catalogue_import_loads_no_server_and_no_driver() -> None:
    script = (
        "import sys, rankscope.exporter.catalogue, rankscope.exporter.commands, rankscope.exporter.xids; "
        "print([name for name in ('torch', 'pynvml', 'uvicorn', 'h11', 'bcrypt', 'prometheus_client') if name in sys.modules])"
    )

    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert completed.stdout.strip() == "[]"


@pytest.mark.slow
def test_the_number_of_series_stays_within_the_budget(start_exporter: StartExporter, node: FakeDriver, tmp_path: Path) -> None:
    # given GPUs with all readings, and one rank that publishes every metric of a recorder
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "a.prom").write_text(rank_text())
    exporter = start_exporter("--state-dir", tmp_path / "state", "--no-xid.kernel-log", env=node.env)
    exporter.wait_until(lambda: len(exporter.values("gpu_xid_last_code")) == 4)
    exporter.wait_until(lambda: len(exporter.values("gpu_sm_active_ratio")) == 3)
    exporter.wait_until(lambda: exporter.values("gpu_nvlink_errors_total") != [])

    page = exporter.page()

    per_gpu = Counter(dict(labels)["uuid"] for _, labels in page if "uuid" in dict(labels))
    of_jobs = {row.name for row in CATALOGUE if row.group == "job"}
    of_rank = [name for name, labels in page if "rank" in dict(labels)]
    assert len(per_gpu) == 4 + 2
    # minus what a job would add
    assert 100 < max(per_gpu.values()) <= 140 - len(of_jobs - {name for name, _ in page})
    # a step-time histogram has 21 of them, sections of the script up to 17
    assert len(RANK_METRICS) + 20 < len(of_rank) <= 100


@pytest.mark.slow
def test_a_gpu_with_every_error_and_a_job_stays_within_the_series_budget(
    start_exporter: StartExporter, node: FakeDriver, tmp_path: Path
) -> None:
    # given an H100 allocated to a job, and the DCGM page, which enables more collectors
    slurm_folder(tmp_path / "jobs", job_7={"CUDA_VISIBLE_DEVICES": uuid_of(0)})
    options = ("--compat", "dcgm", "--jobs.slurm-dir", tmp_path / "jobs", "--no-xid.kernel-log")
    exporter = start_exporter(*options, env=node.env)
    exporter.wait_until(lambda: len(exporter.values("gpu_sm_active_ratio")) == 3)
    exporter.wait_until(lambda: exporter.values("gpu_job_info", job_id="7") == [1])
    uuid = uuid_of(0)

    # when it has every Xid that asks for an operator, and nine others
    codes = [*ACTIONABLE, *[code for code in XIDS if code not in ACTIONABLE][:9]]
    node.xid(0, *codes)
    exporter.wait_until(lambda: sum(exporter.values("gpu_xid_errors_total", uuid=uuid)) == len(codes))
    exporter.wait_until(lambda: exporter.values("gpu_xid_last_job_info", uuid=uuid, job_id="7") == [1])

    page = exporter.page()
    of_it = [name for name, labels in page if ("uuid", uuid) in labels]
    per_code = [of_it.count(f"gpu_xid_{name}") for name in ("errors_total", "last_timestamp_seconds", "recent_errors")]
    assert per_code == [len(codes)] * 3
    assert 130 < len(of_it) <= 155 + 3 * len(codes)


# The table of Xids


def test_every_xid_has_a_meaning_and_actionable_xids_an_action() -> None:
    assert list(XIDS) == sorted(XIDS)
    for xid in XIDS.values():
        assert xid.meaning.endswith("."), xid
        assert xid.name == xid.name.lower(), xid
        assert not xid.actionable or xid.action != "none", xid
        assert xid.actionable or xid.action not in ("contact_vendor", "reset_gpu", "reboot"), xid
    assert SOURCE.url.startswith("https://docs.nvidia.com/")


def test_well_known_xids_are_classified_correctly() -> None:
    assert {48, 64, 74, 79, 94, 95, 119, 120, 140} <= set(ACTIONABLE)
    assert not {13, 31, 43, 45, 63} & set(ACTIONABLE)
    assert XIDS[FALLEN_OFF_THE_BUS].action == "reboot"


def test_xids_of_new_generations_are_listed() -> None:
    assert set(range(143, 177)) <= set(XIDS)
    assert set(range(144, 151)) == GRADED
    assert {XIDS[code].actionable for code in (167, 169, 173)} == {True}
    assert {xid.source for xid in XIDS.values()} == SOURCES.keys()


def test_critical_xids_are_few_and_actionable() -> None:
    assert len(CRITICAL) < 20
    assert all(xid.actionable for xid in XIDS.values() if xid.critical)


def test_xid_metrics_have_the_expected_labels() -> None:
    assert BY_NAME["gpu_xid_errors_total"].labels == ("uuid", "xid", "severity")
    assert BY_NAME["nvswitch_sxid_errors_total"].labels == ("pci_bus_id", "sxid", "severity")
