"""Place of a process in its job, from the environment variables that launchers set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_NUMBER: Final = re.compile(r"[0-9]{1,9}")

_VARIABLES: Final = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),  # torchrun, and all that train with torch.distributed
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),  # MPICH, Intel MPI
    # srun. A batch script has a SLURM_PROCID, too, but is no rank; only a job step knows how many tasks it has.
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"),
)


class LauncherPlace(NamedTuple):
    """Place of a process in its job; ``None`` where no launcher says."""

    rank: int | None
    local_rank: int | None
    world_size: int | None


def place_in_job(environ: Mapping[str, str]) -> LauncherPlace:
    """Return the place that the launcher says which started the process last: torchrun comes before what started torchrun.

    Values that are no numbers count as unknown.
    """
    outer = next((names for names in _VARIABLES if names[0] in environ and names[2] in environ), _VARIABLES[0])
    return LauncherPlace(*(_number(environ.get(name)) for name in outer))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None
