"""From evidence to slow ranks, with their cause and its physical reason.

The input is a table of own times, [ranks, steps], of ranks that do the same work (``OwnTimes`` in ``evidence/compared.py``).
``judging/late_ranks`` makes such a table from matched collectives, ``evidence/kernels/device_times.py`` from the work of
devices. The output is a ``Diagnosis`` (``diagnosis``): ranks, cause, cost and evidence.

Which ranks are slow? That is in ``judging``; read ``job_judgement`` first: every source is judged there. ``rank_judge`` finds,
in one group, the ranks and hosts whose ``excess`` over their peers is beyond chance (``outliers``), and names them if healing
them saves enough (``SlowRanks``). ``significance`` has the tests, ``healing`` what is saved, ``noise`` its error.
``moving_wait`` has the waiting that no single rank causes. ``late_ranks`` finds ranks that come last at collectives,
``few_replicas`` slow ranks of stages that have few of them.
Beside the folder, ``profiled_steps`` describes stragglers in profiled steps, ``pipeline_bound`` bounds what healing a rank of a
pipeline saves, and ``doubts`` tells where the times of traces contradict a slow rank.

Why are they slow? That is in ``reasons``. ``step_signals`` measures the excess of each phase and meter; ``trace_signals`` does
for traces. These ``signals`` are looked up in the table of causes (``rankscope.analysis.causes``). ``physical`` looks up the
reason in the readings of the GPU, which ``hardware_reason`` fetches, and ``slow_kernels`` tells a slow device from slow kernels.
``stalled_line`` finds the line of code, and ``remedy_table`` has what to do.

``run_evidence`` has all that was read from a run, for this stage and the next ones. ``change_points`` answers another question:
from which step on was the run slower? The dashboard and the watcher use it.
"""
