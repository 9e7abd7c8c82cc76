"""What a step's time consists of, and what waiting costs.

Read ``waterfall`` first: it turns known ``Costs`` into parts that sum to the step. The costs come from ``step_costs`` (records of
all steps) and ``window_costs`` (profiled windows and traces). ``run_costs`` merges the two for a run.

The other modules answer one question each:

- what do the few steps cost that take much longer: ``rare_steps``;
- which rank delayed which, and by how much: ``ledger``;
- how long a pipeline waits, and how much of that its schedule explains: ``pipeline``;
- does memory grow or leak: ``memory``;
- what does recording cost: ``recorder_cost``.

``cost_figures`` gives these results the names by which the table of advice refers to them.
"""
