"""What to do about a slow rank or host: the type of a remedy, and the sentences of advice that several tables share.

Sentences are templates; ``verdict/advice_rows.py`` describes their placeholders.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Remedy:
    """Advice for ranks that are slow for one reason: the next actions of the verdict, and a recommendation."""

    name: str
    """Name of the recommendation."""
    actions: tuple[str, ...]
    """Most useful first."""
    figure: str = ""
    """Name of the time lost, where another remedy than that of the cause recovers it; empty: the name of the cause or reason."""
    at_least: float = 0.05
    """Share of the step from which it is recommended."""
    whole_host: bool = False
    """True if it is for hosts at fault as a whole only, instead of the remedy for ranks."""


def remedy(name: str, *actions: str, figure: str = "", at_least: float = 0.05, whole_host: bool = False) -> Remedy:
    """Return the remedy with these actions."""
    return Remedy(name, actions, figure, at_least, whole_host)


LOAD_AHEAD: Final = (
    "Load ahead: raise the DataLoader's num_workers and prefetch_factor, keep persistent_workers on; store samples decoded and "
    "in large files; move transforms off the training thread"
)

LOAD_IN_WORKERS: Final = (
    "Load in worker processes, while the model trains: DataLoader(num_workers=4, prefetch_factor=2, persistent_workers=True); "
    "with num_workers=0 the thread that iterates over it loads every batch itself"
)

LAUNCH_LESS: Final = (
    "Keep the device busy: torch.compile, CUDA graphs, larger batches; no .item(), .cpu() or print of tensors in the loop"
)

COLLECT: Final = (
    "Collect garbage when it suits: gc.freeze() after start-up, gc.disable(), and gc.collect() every N steps on all ranks at "
    "the same step"
)

EVALUATE_LESS: Final = (
    "Evaluate less often or on fewer batches, share the evaluation equally among all ranks, or run it in a job of its own"
)

SAVE_ASIDE: Final = (
    "Write checkpoints less often, asynchronously (torch.distributed.checkpoint.async_save), or sharded over all ranks"
)

DUMP: Final = "Run py-spy dump on %s to see what the training thread waits in: logging, storage, locks, a data loader, sleeps"

FEWER_THREADS: Final = (
    "Let the ranks of a host run no more threads than it has cores (OMP_NUM_THREADS + num_workers of each), and pin them to "
    "cores of their own"
)

SEGMENTS: Final = "Let the allocator fragment less: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"

LINKS_ALONE: Final = "Measure the links without the job, as with nccl-tests (all_reduce_perf -b 64M -e 1G -f 2) or iperf3"

TRANSPORT: Final = (
    "See which transport the job took: NCCL_DEBUG=INFO names NVLS, P2P, SHM, NET/IB (with GPUDirect RDMA or not) or NET/Socket; "
    "GLOO_SOCKET_IFNAME is gloo's"
)

RECORD_ALL: Final = "Record every step, with phases and CPU time of rank {rank}: {record}"

WITHOUT: Final = "Start the job again without {without}; if no rank is slow then, replace %s"

READINGS: Final = "Look at the readings of rank {rank}'s GPU on {host}: nvidia-smi -q -d %s"

CAPTURE: Final = (
    "While it trains, profile steps to see whether the GPU work or the CPU work of {ranks} is late: "
    "rankscope capture {run} --steps 20"
)
RECORD_WINDOWS: Final = "If it has ended, record a run with profiled steps: rankscope run --window-every 50 -- ..."

SERVED: Final = (
    "Compare the power supplies, the cooling and the clocks of {host} with those of another host (ipmitool sdr; nvidia-smi -q -d "
    "POWER,TEMPERATURE,CLOCK,PERFORMANCE), over time by the metrics of rankscope exporter"
)
SHARED: Final = (
    "Check what the ranks of {host} share: PCIe switches and the width of their links (nvidia-smi topo -m, lspci -vv), the NICs "
    "(ibstat, ethtool -S), CPUs and memory"
)
WITHOUT_HOST: Final = "Start the job again without {without}; if no rank is slow then, the host is at fault, not the job"
# In an order that loses no unsaved work, as in the rules for nodes.
OUT_OF_SERVICE: Final = (
    'Take {nodes} out of service: scontrol update NodeName={node_list} State=DRAIN Reason="rankscope: slow host"; in Kubernetes '
    "kubectl cordon {nodes}, let the jobs there reach a checkpoint or end, then kubectl drain {nodes} --ignore-daemonsets "
    "--delete-emptydir-data"
)
