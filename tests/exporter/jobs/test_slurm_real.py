"""The prolog and epilog under a real one-node Slurm: the variables they get, and the exporter's series."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.fake_driver import FakeDriver, build_library, h100_state, uuid_of
from tests.slurm_node import Slurm, started

SCRIPTS = Path(__file__).resolve().parents[3] / "exporter" / "slurm"
GPUS = 4

pytestmark = [
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.skipif(os.getuid() != 0, reason="slurmd runs as root, as the prolog does"),
]


class JobNode:
    """A node with GPUs; ``jobs`` is the folder of the prolog's files."""

    def __init__(self, folder: Path, slurm: Slurm) -> None:
        self.jobs = folder / "jobs"
        self.run = slurm.run

    def submit(self, *options: str) -> str:
        printed = self.run("sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", "sleep 600")
        return printed.strip()


@pytest.fixture
def slurm(require_program: Callable[[str], str], free_port: Callable[[], int], tmp_path: Path) -> Iterator[JobNode]:
    for script in ("prolog", "epilog"):
        # Slurm builds the prolog's environment itself, so the script must set the folder.
        file = tmp_path / script
        file.write_text(f"#!/bin/sh\nRANKSCOPE_JOBS_DIR={tmp_path}/jobs exec {SCRIPTS}/{script}.sh\n")
        file.chmod(0o755)
    for index in range(GPUS):
        os.mknod(tmp_path / f"nvidia{index}", 0o20644, os.makedev(1, 3))  # Slurm takes the number from the name
    (tmp_path / "gres.conf").write_text(f"Name=gpu File={tmp_path}/nvidia[0-{GPUS - 1}]\n")
    settings = f"GresTypes=gpu\nProlog={tmp_path}/prolog\nEpilog={tmp_path}/epilog\nPrologFlags=Alloc"
    with started(tmp_path, require_program, free_port, settings=settings, node=f"Gres=gpu:{GPUS}") as node:
        jobs = JobNode(tmp_path, node)
        yield jobs
        node.run("scancel", "--user=root")
        node.wait_until(lambda: list(jobs.jobs.glob("job-*")) == [])


def test_who_holds_a_gpu_is_known_before_its_first_process_and_until_the_job_ends(
    slurm: JobNode, start_exporter: Callable[..., Any], tmp_path: Path
) -> None:
    states = [{name: value for name, value in h100_state(index).items() if "process" not in name} for index in range(GPUS)]
    driver = FakeDriver(tmp_path / "driver", build_library(), states)
    exporter = start_exporter("--jobs.slurm-dir", slurm.jobs, env=driver.env)

    def holder(index: int) -> list[float]:
        result: list[float] = exporter.values("gpu_allocated", uuid=uuid_of(index))
        return result

    # given a job with two GPUs, and an array of two jobs with one each
    first = slurm.submit("--gres=gpu:2")
    exporter.wait_until(lambda: len(exporter.values("gpu_job_info", job_id=first, partition="night")) == 2)
    array = slurm.submit("--gres=gpu:1", "--array=1-2")
    exporter.wait_until(lambda: len(exporter.values("gpu_job_info")) == GPUS)

    # then every GPU is held, by three jobs, and used by none
    jobs = {dict(labels)["job_id"] for name, labels in exporter.page() if name == "gpu_job_info"}
    assert first in jobs
    assert len(jobs) == 3
    assert [holder(index) for index in range(GPUS)] == [[1]] * GPUS
    assert exporter.values("gpu_in_use") == [0] * GPUS

    # when the array ends, its GPUs are free
    slurm.run("scancel", array)
    exporter.wait_until(lambda: sorted(exporter.values("gpu_allocated")) == [0, 0, 1, 1])
    assert len(exporter.values("gpu_job_info", job_id=first)) == 2
