"""Coordination of the ranks' profiled steps, through files in the attempt's folder that each have one writer.

Every rank's helper writes ``reports/RRRRR.json`` (``reports``, with its ``pace``). Rank 0's helper reads these and the requests
in ``control/``, and appends the windows of all ranks to ``plan-000000.jsonl`` (``window_coordinator``);
``rankscope.profiler.plan`` chooses them, within the budget. Every rank's helper reads that file (``window_client``).
``coordination`` is the task that does all of this.
"""
