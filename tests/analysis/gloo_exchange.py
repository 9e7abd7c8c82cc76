"""Messages between two gloo ranks, with recorded shapes; one trace per rank. Arguments: folder, rank, late rank, pause in s."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

ELEMENTS = 1 << 20
ROUNDS = 5


def main() -> None:
    folder, rank, late_rank, pause = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
    message = torch.ones(ELEMENTS)

    def exchange() -> None:
        dist.all_reduce(message)
        if rank == late_rank:
            time.sleep(pause)
        if rank == 0:
            dist.send(message, 1)
        else:
            dist.recv(message, 0)

    exchange()
    with torch.autograd.profiler.profile(use_kineto=True, record_shapes=True) as profiler:
        for number in range(ROUNDS):
            with torch.autograd.profiler.record_function(f"ProfilerStep#{number}"):
                exchange()
    profiler.export_chrome_trace(str(folder / f"rank-{rank}.json"))
    dist.destroy_process_group()


main()
