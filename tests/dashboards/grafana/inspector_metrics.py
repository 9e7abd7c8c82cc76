"""Metrics as NCCL Inspector (2.30) writes them for Prometheus, composed by the tests. Its logs: ``tests/nccl/inspector.py``."""

from __future__ import annotations


def collective(
    bandwidth: float,
    exec_us: float,
    *,
    comm: str,
    name: str = "AllReduce",
    size: str = "4-5MB",
    gpu: int = 0,
    nranks: int = 4,
    job: str = "7",
) -> str:
    """Return the two lines of one communicator, collective and message size."""
    labels = (
        f'version="v5.1",slurm_job_id="{job}",node="node1",gpu="GPU{gpu}",comm_name="{comm}",n_nodes="1",nranks="{nranks}",'
        f'collective="{name}",message_size="{size}",algo_proto="Ring_ll"'
    )
    return (
        f"nccl_bus_bandwidth_gbs{{{labels}}} {bandwidth:.6g}\nnccl_collective_exec_time_microseconds{{{labels}}} {exec_us:.6g}\n"
    )


def p2p(bandwidth: float, exec_us: float, *, gpu: int = 0, comm: str = "PP Group 0", job: str = "7") -> str:
    """Return the two lines of the sends of a communicator."""
    labels = (
        f'version="v5.1",slurm_job_id="{job}",node="node1",gpu="GPU{gpu}",comm_name="{comm}",n_nodes="1",nranks="2",'
        'p2p_operation="Send",message_size="512-513MB"'
    )
    return f"nccl_p2p_bus_bandwidth_gbs{{{labels}}} {bandwidth:.6g}\nnccl_p2p_exec_time_microseconds{{{labels}}} {exec_us:.6g}\n"
