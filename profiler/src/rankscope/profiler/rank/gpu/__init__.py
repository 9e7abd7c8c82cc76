"""GPU of a rank: marks on its streams, profiler windows, memory snapshots, and dumps of NCCL.

``device`` has the times of phases by marks, in the steps that ``mark_sampling`` chooses, never during ``graph_capture``.
``windows`` profiles steps through ``kineto``, the interface to torch's profiler; on a CPU, too. ``memory_snapshot`` and
``flight_dump`` write torch's own dumps.
"""
