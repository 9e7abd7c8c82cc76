"""Files of NCCL Inspector in the spool, in the format of NCCL 2.30 (see ``inspector_files``)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.exporter.conftest import RunningExporter
from tests.exporter.spool.inspector_files import collective, file_name, p2p, uuid_of, write_in_place
from tests.exporter.spool.spool_files import GOOD, R1, spool_of

from rankscope.exporter.source import FleetState, GpuIdentity, GpuProcess, GpuSample, GpuState
from rankscope.exporter.spool.nccl_inspector import MAX_BYTES, MAX_FOLDERS_OF_USER, MAX_SERIES
from rankscope.exporter.spool.process_folders import users_of_gpu
from rankscope.exporter.spool.reading import SpoolSample

BANDWIDTH, EXEC = "nccl_bus_bandwidth_gbs", "nccl_collective_exec_time_microseconds"
GPU0, GPU1 = uuid_of(0), uuid_of(1)


def put(folder: Path, text: str, *, uuid: str = GPU0, age_s: float = 5.0, uid: int | None = None) -> Path:
    """Write a file that the plugin finished ``age_s`` seconds ago, and return its path."""
    path = folder / file_name(uuid)
    write_in_place(path, [text])
    written = time.time() - age_s
    os.utime(path, (written, written))
    if uid is not None:
        os.chown(path, uid, uid)
    return path


def values(sample: SpoolSample, metric: str, label: str = "uuid") -> dict[str, float]:
    """Return the value of each series of a metric, by one of its labels."""
    families = [family for family in sample.families if family.name == metric]
    return {dict(one.labels).get(label, ""): one.value for family in families for one in family.series}


def test_every_gpu_has_a_file_and_its_uuid_comes_from_the_name(tmp_path: Path) -> None:
    put(tmp_path, collective(678.263, 9498.47) + p2p(464.9, 1154.87))
    put(tmp_path, collective(670.0, 9500.0, gpu=1), uuid=GPU1)
    (tmp_path / "0-r1-3.prom").write_text(GOOD)

    sample = spool_of(tmp_path).read()

    assert values(sample, BANDWIDTH) == {GPU0: 678.263, GPU1: 670.0}
    assert values(sample, EXEC) == {GPU0: 9498.47, GPU1: 9500.0}
    assert values(sample, "nccl_p2p_bus_bandwidth_gbs", "p2p_operation") == {"Send": 464.9}
    (series,) = [one for family in sample.families if family.name == BANDWIDTH for one in family.series if one.value == 678.263]
    assert dict(series.labels) == {
        "version": "v5.1",
        "slurm_job_id": "77",
        "node": "node1",
        "gpu": "GPU0",
        "comm_name": "DP Group 0",
        "n_nodes": "1",
        "nranks": "4",
        "collective": "AllReduce",
        "message_size": "4-5MB",
        "algo_proto": "Ring_ll",
        "uuid": GPU0,
    }
    assert {family.type for family in sample.families if family.name.startswith("nccl_")} == {"gauge"}
    assert (sample.states, sample.ok_files, sample.rejected) == ({R1: "running"}, 3, {})


def test_counters_of_the_plugin_are_counters(tmp_path: Path) -> None:
    labels = 'version="v5.1",slurm_job_id="77",node="node1",gpu="GPU0"'
    put(tmp_path, f"nccl_collectives_total{{{labels}}} 120\nnccl_collectives_dropped_total{{{labels}}} 3\n")

    sample = spool_of(tmp_path).read()

    assert {family.name: family.type for family in sample.families} == {
        "nccl_collectives_total": "counter",
        "nccl_collectives_dropped_total": "counter",
    }


def test_of_series_that_the_plugin_appended_the_last_counts(tmp_path: Path) -> None:
    put(tmp_path, collective(100, 10) + collective(200, 20))

    sample = spool_of(tmp_path).read()

    assert (values(sample, BANDWIDTH), values(sample, EXEC)) == ({GPU0: 200.0}, {GPU0: 20.0})


@pytest.mark.parametrize("cut", [0, 100, -1], ids=["truncated", "in a line", "before the last line feed"])
def test_a_half_written_file_changes_nothing(cut: int, tmp_path: Path) -> None:
    # given a complete file that was read
    spool = spool_of(tmp_path)
    path = put(tmp_path, collective(100, 10))
    assert values(spool.read(), BANDWIDTH) == {GPU0: 100.0}

    # when the plugin has written only a part of the next one, then the last complete read counts
    whole = collective(200, 20)
    path.write_text(whole[:cut])
    sample = spool.read()
    assert values(sample, BANDWIDTH) == {GPU0: 100.0}
    assert (sample.ok_files, sample.rejected) == (1, {})

    # and when it has written all, then the new one counts
    put(tmp_path, whole)
    assert values(spool.read(), BANDWIDTH) == {GPU0: 200.0}


def test_a_file_written_just_now_may_lack_lines_and_is_read_again(tmp_path: Path) -> None:
    passed_s = 0.0
    spool = spool_of(tmp_path, monotonic=lambda: time.monotonic() + passed_s)
    path = put(tmp_path, collective(100, 10) + collective(90, 9, comm="TP"))
    assert values(spool.read(), BANDWIDTH, "comm_name") == {"DP Group 0": 100.0, "TP": 90.0}

    # when it ends with a complete line that is not the last one
    path.write_text(collective(200, 20))
    assert values(spool.read(), BANDWIDTH, "comm_name") == {"DP Group 0": 100.0, "TP": 90.0}

    # then it counts once it has not changed for a while
    passed_s = 5.0
    assert values(spool.read(), BANDWIDTH, "comm_name") == {"DP Group 0": 200.0}


def test_a_file_that_stays_half_written_becomes_stale(tmp_path: Path) -> None:
    passed_s = 0.0
    spool = spool_of(tmp_path, monotonic=lambda: time.monotonic() + passed_s)
    path = put(tmp_path, collective(100, 10))
    spool.read()
    path.write_text("nccl_bus")

    for moment_s in (1.0, 100.0, 200.0, 290.0):
        passed_s = moment_s
        assert values(spool.read(), BANDWIDTH) == {GPU0: 100.0}
    passed_s = 310.0
    sample = spool.read()
    assert (values(sample, BANDWIDTH), sample.stale_files, sample.ok_files) == ({}, 1, 0)


def test_a_file_nobody_writes_any_more_is_stale_and_then_forgotten(tmp_path: Path) -> None:
    path = put(tmp_path, collective(100, 10), age_s=400)
    sample = spool_of(tmp_path).read()
    assert (sample.families, sample.stale_files, sample.ok_files) == ((), 1, 0)

    path.write_text("nccl_bus")
    os.utime(path, (time.time() - 400,) * 2)
    sample = spool_of(tmp_path, users_of_gpu=lambda _: {os.getuid() + 1}).read()
    assert (sample.families, sample.stale_files, sample.rejected) == ((), 1, {})

    os.utime(path, (1000, 1000))
    sample = spool_of(tmp_path).read()
    assert (sample.stale_files, sample.rejected) == (0, {})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "incomplete"),
        ("nccl_bus_bandwidth_gbs{", "incomplete"),
        ("# nothing\n", "empty"),
        ("node_load1 1\n", "wrong_name"),
        ("rank_steps_total 1\n", "wrong_name"),
        ("nccl_x_bucket 1\n", "wrong_name"),
        ("nccl_x_count 1\n", "wrong_name"),
        ("# TYPE nccl_x counter\nnccl_x_total 1\n# TYPE nccl_y_total gauge\nnccl_y_total 1\n", "wrong_type"),
        ("nccl_x 1\nnccl_x_total 1\n", "wrong_type"),
        ("nccl_x 1 1700000000000\n", "timestamp"),
        ("nccl_x " + "9" * 400 + "\n", "not_prometheus_text"),
        ("nccl_x\x00 1\n", "not_prometheus_text"),
        ("nccl_x{a=\n", "not_prometheus_text"),
        ('nccl_x{uuid="GPU-of-another"} 1\n', "wrong_labels"),
        ('nccl_x{coll_sn="1"} 1\n', "wrong_labels"),
        ('nccl_x{timestamp="2026-01-01"} 1\n', "wrong_labels"),
        ('nccl_x{a="' + "x" * 513 + '"} 1\n', "wrong_labels"),
        ("nccl_x{" + ",".join(f'a{n}="1"' for n in range(16)) + "} 1\n", "wrong_labels"),
        ("".join(f'nccl_x{{a="{n}"}} 1\n' for n in range(MAX_SERIES + 1)), "too_many_series"),
        ("\n" * (4 * MAX_SERIES + 1), "too_many_series"),
        ("#" * MAX_BYTES + "\n", "too_large"),
    ],
)
def test_a_file_that_is_not_as_agreed_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    put(tmp_path, text)
    put(tmp_path, collective(100, 10), uuid=GPU1)

    sample = spool_of(tmp_path).read()

    assert sample.rejected == {reason: 1}
    assert values(sample, BANDWIDTH) == {GPU1: 100.0}


def test_a_gpu_may_have_as_many_series_as_is_agreed(tmp_path: Path) -> None:
    sizes = [f"{size}-{size + 1}KB" for size in range(1, MAX_SERIES // 2 + 1)]
    put(tmp_path, "".join(collective(100, 10, size=size) for size in sizes))

    sample = spool_of(tmp_path).read()

    assert sample.rejected == {}
    assert len(values(sample, BANDWIDTH, "message_size")) == MAX_SERIES // 2


def test_other_names_are_files_of_ranks(tmp_path: Path) -> None:
    (tmp_path / "nccl_inspector_metrics_0.prom").write_text(collective(100, 10))
    (tmp_path / file_name(GPU0).upper()).write_text(collective(100, 10))

    assert spool_of(tmp_path).read().rejected == {"wrong_name": 1}


def test_users_and_jobs_may_have_folders_of_their_own(tmp_path: Path) -> None:
    for index, job in enumerate(("77", "78")):
        folder = tmp_path / f"nccl-inspector-{job}"
        folder.mkdir()
        put(folder, collective(100 + index, 10, job=job), uuid=uuid_of(index))
    (tmp_path / "other").mkdir()
    put(tmp_path / "other", collective(1, 1), uuid=uuid_of(2))
    (tmp_path / "nccl-inspector-link").symlink_to(tmp_path / "other")
    (tmp_path / "nccl-inspector-file").write_text("")

    sample = spool_of(tmp_path).read()

    assert values(sample, BANDWIDTH, "slurm_job_id") == {"77": 100.0, "78": 101.0}
    assert sample.rejected == {"not_regular": 2}


def test_of_two_files_about_one_gpu_the_fresher_counts(tmp_path: Path) -> None:
    for age_s, job in ((200, "77"), (30, "78")):
        folder = tmp_path / f"nccl-inspector-{job}"
        folder.mkdir()
        put(folder, collective(100, 10, job=job), age_s=age_s)

    sample = spool_of(tmp_path).read()

    assert set(values(sample, BANDWIDTH, "slurm_job_id")) == {"78"}
    assert sample.duplicates == 2


def test_no_crowd_of_folders_holds_the_exporter_up(tmp_path: Path) -> None:
    for number in range(MAX_FOLDERS_OF_USER + 5):
        folder = tmp_path / f"nccl-inspector-{number}"
        folder.mkdir()
        put(folder, collective(number, 10, comm=str(number)), uuid=f"GPU-6d3a1f00-0000-4000-8000-{number:012x}")
        os.utime(folder, (number, number))

    sample = spool_of(tmp_path).read()

    assert set(values(sample, BANDWIDTH, "comm_name")) == {str(number) for number in range(5, MAX_FOLDERS_OF_USER + 5)}
    assert sample.rejected == {"too_many_files": 5}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of other users")
def test_in_a_users_folder_only_his_files_count(tmp_path: Path) -> None:
    folder = tmp_path / "nccl-inspector-ann"
    folder.mkdir()
    os.chown(folder, 1001, 1001)
    put(folder, collective(100, 10), uid=1001)
    put(folder, collective(100, 10), uuid=GPU1, uid=1002)

    sample = spool_of(tmp_path).read()

    assert set(values(sample, BANDWIDTH)) == {GPU0}
    assert sample.rejected == {"foreign_owner": 1}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of other users")
def test_a_gpu_is_spoken_for_by_those_whose_processes_are_on_it(tmp_path: Path) -> None:
    for user, uid in (("ann", 1001), ("bob", 1002)):
        folder = tmp_path / f"nccl-inspector-{user}"
        folder.mkdir()
        os.chown(folder, uid, uid)
        put(folder, collective(uid, 10), uid=uid, age_s=uid)

    def read(users: set[int]) -> tuple[dict[str, float], dict[str, int]]:
        sample = spool_of(tmp_path, stale_s=5000, users_of_gpu={GPU0: users}.__getitem__).read()
        return values(sample, BANDWIDTH), sample.rejected

    assert read({1001}) == ({GPU0: 1001.0}, {"foreign_owner": 1})
    assert read({1002}) == ({GPU0: 1002.0}, {"foreign_owner": 1})
    assert read({1003}) == ({}, {"foreign_owner": 2})
    # no user of the GPU is known: the fresher file counts
    assert read(set()) == ({GPU0: 1001.0}, {})


def test_users_of_a_gpu_come_from_its_processes(tmp_path: Path) -> None:
    for pid, uid in ((10, 1001), (11, 1002), (12, 1003)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "status").write_text(f"Name:\tpython\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")

    def gpu(uuid: str, *pids: int) -> GpuState:
        identity = GpuIdentity(uuid=uuid, index=0, model="H100", pci_bus_id="")
        processes = tuple(GpuProcess(pid, "compute", None) for pid in pids)
        return GpuState(identity, up=True, sample=GpuSample(identity, 0.0, 0.0, processes=processes))

    state = FleetState((gpu(GPU0, 10, 11, 99), gpu(GPU1, 12)), None, {}, 0, 0, None, None)

    assert users_of_gpu(state, GPU0, proc=tmp_path) == {1001, 1002}
    assert users_of_gpu(state, GPU1, proc=tmp_path) == {1003}
    assert users_of_gpu(state, uuid_of(2), proc=tmp_path) == set()


@pytest.mark.slow
def test_the_page_of_the_exporter(start_exporter: Callable[..., RunningExporter], tmp_path: Path) -> None:
    # given a simulated GPU, its NCCL Inspector file, and a file in the format with one series per collective
    spool = tmp_path / "spool"
    spool.mkdir()
    exporter = start_exporter("--simulate", "2", "--interval", "0.2")
    ((_, labels), _) = next(item for item in exporter.page().items() if item[0][0] == "gpu_info")
    uuid = dict(labels)["uuid"]
    put(spool, collective(678.263, 9498.47), uuid=uuid)
    put(spool, 'nccl_bus_bandwidth_gbs{coll_sn="5",timestamp="now"} 1\n', uuid=GPU1)

    # then its series are on the page with the uuid of the GPU, and the spool counts both
    exporter.wait_until(lambda: exporter.values(BANDWIDTH, uuid=uuid, comm_name="DP Group 0") == [678.263])
    assert exporter.values("rankscope_exporter_spool_files", state="ok") == [1.0]
    assert exporter.values("rankscope_exporter_spool_rejected_files", reason="wrong_labels") == [1.0]
    page = exporter.get("/metrics", Accept="application/openmetrics-text; version=1.0.0").text
    assert page.endswith("# EOF\n")
    assert f"# TYPE {BANDWIDTH} gauge" in page

    # and when the plugin removes its file, as at the end of a job, they are gone
    (spool / file_name(uuid)).unlink()
    exporter.wait_until(lambda: exporter.values(BANDWIDTH) == [])
