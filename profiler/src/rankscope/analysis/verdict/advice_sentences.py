"""Sentences of advice that several rows of the table share."""

from __future__ import annotations

from typing import Final

ROTATING: Final = (
    "Look for what the ranks share, or what comes and goes on their hosts: storage, logging, scheduled jobs, neighbours"
)
"""Advice for a slowdown that moves between ranks: no rank or host is at fault by itself."""

SHOW: Final = "rankscope dashboard {run}"
"""Last action of all verdicts but those for which data is missing."""

RECORD: Final = "rankscope run -- torchrun ... train.py"

LOAD_AHEAD: Final = (
    "Load ahead: raise the DataLoader's num_workers and prefetch_factor, keep persistent_workers on; store samples decoded and "
    "in large files; move transforms off the training thread"
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
