"""GPU of a rank: marks on its streams, profiler windows, memory snapshots, and dumps of NCCL."""
