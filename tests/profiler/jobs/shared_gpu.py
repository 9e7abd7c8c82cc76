"""GPUs for ranks of which several may have to share one."""

from __future__ import annotations

import os

import torch


def cuda_device() -> torch.device:
    """Return this rank's GPU, and prepare NCCL for ranks that share one. Fewer GPUs than ranks: all take the first."""
    local, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if int(os.environ["LOCAL_WORLD_SIZE"]) <= gpus:
        return torch.device("cuda", local)
    # NCCL refuses two ranks on one GPU of one host, so each rank is a host of its own, connected over the loopback device.
    os.environ |= {"NCCL_HOSTID": f"rank-{local}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    return torch.device("cuda", 0)
