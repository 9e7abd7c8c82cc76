"""From the durations of collectives on each rank to the rank that the others wait for, without traces or recorder.

1. A source is a module with the name of its ``DurationSource``: ``flight_recorder`` reads dumps, ``nccl_inspector`` logs, and
   ``blocks`` what helpers stored with a run. Each hands over ``Durations`` (``sources``): operations as columns
   (``duration_calls``). ``log_files`` and ``logs`` decode the files of NCCL Inspector, ``processes`` finds the rank of each of
   its processes, and ``pipelines`` the stages of its pipelines.
2. ``job_durations`` infers steps, matches collectives and assigns blame. ``overlap`` finds the groups whose collectives run
   beside compute. ``own_times`` has the time of a step outside of communication, for operations that cannot be matched, as in
   pipelines.
3. ``verdict/durations_case.py`` judges. ``run_durations`` has those of a run, in the steps of the run.
"""
