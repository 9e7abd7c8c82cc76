"""A process: its place in its job, as launchers tell it, and the pause of Python's garbage collector."""

from __future__ import annotations

import gc

import pytest

from rankscope.base.launchers import LauncherPlace, place_in_job
from rankscope.base.process import collector_paused


def test_garbage_collector_is_enabled_again_after_an_error() -> None:
    @collector_paused()
    def fail() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert gc.isenabled()


def test_nested_collector_pause_does_not_end_the_outer_pause() -> None:
    with collector_paused():
        with collector_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        (OPEN_MPI, LauncherPlace(2, 0, 4)),
        ({"PMI_RANK": "3", "MPI_LOCALRANKID": "1", "PMI_SIZE": "4"}, LauncherPlace(3, 1, 4)),
        ({"RANK": "7", "LOCAL_RANK": "1", "WORLD_SIZE": "8", **OPEN_MPI}, LauncherPlace(7, 1, 8)),
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, LauncherPlace(None, None, None)),  # a batch script
        ({"SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "2"}, LauncherPlace(1, 0, 2)),
        ({"RANK": "one", "WORLD_SIZE": "-2"}, LauncherPlace(None, None, None)),
        ({"RANK": "1"}, LauncherPlace(1, None, None)),
        ({}, LauncherPlace(None, None, None)),
    ],
)
def test_launcher_environment_gives_rank_local_rank_and_world_size(environ: dict[str, str], place: LauncherPlace) -> None:
    assert place_in_job(environ) == place
