"""From slow ranks and costs to the verdict, the findings and the advice.

Read ``job_verdict`` first: it makes the verdict from a ``Case``, that is, the diagnosis and the doubts about it. ``run_verdict``
fills the case of a run, from step records or else from profiled windows; ``trace_analysis``, ``captured`` and ``durations_case``
those of other sources. ``builders`` writes the sentences and computes what was lost. ``reasons`` has the diagnosis of a rank by
step records.

If no rank is slow, ``bottleneck`` has the limits of the parts of a step, and ``builders.no_straggler`` the choice between them
and "balanced". Other modules then add to the verdict: ``rare_verdict`` (what rare steps cost), ``bubble`` (parts of a
pipeline's bubble), ``slow_links`` (transfers below the rate of their link), ``stalled_verdict`` (the line of code at which a
rank stalls), ``hung_run`` (a hang replaces the verdict) and ``endings`` (ranks that crashed or were killed).
``unnamed_communication`` has the verdict on traces of several ranks without any known communication.

What to do next comes from one table, ``advice_table``, with rows of the types in ``advice_rows``; those of named ranks come with
their causes and reasons (``inference/reasons/remedy_table.py``). ``advice`` selects from it: next actions for a verdict, and
recommendations for figures.
"""
