"""The process beside each rank: it empties the ring and writes, so that training touches no filesystem. It never loads torch.

``__main__`` reads the words; ``step_assembler`` makes step records of them, which ``writing/`` puts into the run directory.
Everything else is a task: a ``HelperTask`` (``tasks``), listed in ``__main__``, which is called with each step and a few times a
second. A task that fails stops alone.

- ``publishing/``: metrics of the rank for the spool, steps as traces over OTLP
- ``sampling/``: readings of the host's GPUs, samples of the Python stack
- ``collectives/``: durations of collectives, Flight Recorder dumps, answers of NCCL RAS
- ``coordination/``: which steps all ranks profile, and requests to the job
- ``standstill``: what a rank that stands still is doing

``step_time_baseline`` has the usual step time of the rank, ``cupti_cost`` the profiler's cost between its windows.
"""
