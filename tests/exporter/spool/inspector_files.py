"""Texts in the format of NCCL Inspector (NCCL 2.30), composed by the tests, not recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_UUID = "6d3a1f00-0000-4000-8000-00000000000{}"


def uuid_of(gpu: int) -> str:
    """Return the driver's uuid of the GPU."""
    return f"GPU-{_UUID.format(gpu)}"


def file_name(uuid: str) -> str:
    """Return the plugin's file name for a GPU."""
    return f"nccl_inspector_metrics_{uuid.removeprefix('GPU-')}.prom"


def collective(
    bandwidth: float,
    exec_us: float,
    *,
    comm: str = "DP Group 0",
    name: str = "AllReduce",
    size: str = "4-5MB",
    gpu: int = 0,
    nranks: int = 4,
    job: str = "77",
) -> str:
    """Return the two lines of one communicator, collective and message size."""
    labels = (
        f'version="v5.1",slurm_job_id="{job}",node="node1",gpu="GPU{gpu}",comm_name="{comm}",n_nodes="1",nranks="{nranks}",'
        f'collective="{name}",message_size="{size}",algo_proto="Ring_ll"'
    )
    return (
        f"nccl_bus_bandwidth_gbs{{{labels}}} {bandwidth:.6g}\nnccl_collective_exec_time_microseconds{{{labels}}} {exec_us:.6g}\n"
    )


def p2p(bandwidth: float, exec_us: float, *, operation: str = "Send", comm: str = "PP Group 0", job: str = "77") -> str:
    """Return the two lines of the sends or receives of a communicator."""
    labels = (
        f'version="v5.1",slurm_job_id="{job}",node="node1",gpu="GPU0",comm_name="{comm}",n_nodes="1",nranks="2",'
        f'p2p_operation="{operation}",message_size="512-513MB"'
    )
    return f"nccl_p2p_bus_bandwidth_gbs{{{labels}}} {bandwidth:.6g}\nnccl_p2p_exec_time_microseconds{{{labels}}} {exec_us:.6g}\n"


def write_in_place(path: Path, buckets: Sequence[str]) -> None:
    """Write as the plugin does: truncate the file, then flush it after each bucket; the file has mode 0777."""
    with path.open("w") as file:
        path.chmod(0o777)
        for bucket in buckets:
            file.write(bucket)
            file.flush()
