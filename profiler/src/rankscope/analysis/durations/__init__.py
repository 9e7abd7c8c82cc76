"""From the durations of collectives on each rank to the rank that the others wait for, without traces or recorder.

Two sources have them: torch's Flight Recorder with timing, and the logs of the NCCL Inspector plugin.

1. ``flight`` and ``inspector`` read a source into ``calls``: operations per rank with their durations. ``logs`` decodes the
   files of NCCL Inspector, and ``processes`` finds the rank of each of its processes.
2. ``overlap`` finds the groups whose collectives run beside compute. ``own_times`` has the time of a step outside of
   communication, for operations that cannot be matched, as in pipelines. ``stages`` has the stages of these in NCCL Inspector's
   logs.
3. ``analysis`` infers steps, matches collectives and assigns blame. ``case`` has the judgement, with the doubts that durations
   raise.
4. ``follow`` reads a log that is still written, and ``blocks`` has the columns in which helpers store durations with a run.
   ``of_run`` judges a run by them.
"""
