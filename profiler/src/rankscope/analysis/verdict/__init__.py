"""From slow ranks and costs to the verdict, the findings and the advice.

Read ``run_verdict`` first: it decides which verdict a run gets, from step records or else from profiled windows. Traces, captures
and dumps are decided in ``trace_analysis``, ``captured`` and ``durations.verdict``. They all call ``builders``, which writes the
sentences and computes what was lost. ``reasons`` has the signals and the evidence of a rank that a run names.

If no rank is slow, ``bottleneck`` has the limits of the parts of a step, and ``builders.no_straggler`` the choice between them
and "balanced". Other modules then add to the verdict: ``rare_verdict`` (what rare steps cost), ``bubble`` (parts of a
pipeline's bubble), ``slow_links`` (transfers below the rate of their link), ``stalled_verdict`` (the line of code at which a
rank stalls), ``hung_run`` (a hang replaces the verdict) and ``endings`` (ranks that crashed or were killed).
``unnamed_communication`` has the verdict on traces of several ranks without any known communication.

What to do next comes from one table, ``advice_table``, with the rows of named ranks in ``advice_of_ranks``, sentences
that rows share in ``advice_sentences``, and the types of rows in ``advice_rows``. ``advice`` selects from it:
next actions for a verdict, and recommendations for figures.
"""
