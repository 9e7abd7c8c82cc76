"""Coordination of the ranks' profiled steps, through files in the attempt's folder that each have one writer.

Every rank's helper writes ``reports/RRRRR.json`` (``reports``, with its ``pace``); rank 0's helper reads these and the requests
in ``control/``, chooses windows for all ranks within the budget (``window_coordinator``), and appends them to
``plan-000000.jsonl``; every rank's helper reads that file (``window_client``). ``coordination`` is the task that does all of
this.
"""
