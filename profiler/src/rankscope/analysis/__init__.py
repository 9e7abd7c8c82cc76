"""Analysis of records or traces: which ranks are slow, why, at what cost, and what to do next. Pure: no torch, no network.

The folders are stages; each imports only those before it in this list, except that ``verdict/hung_run.py`` uses ``hang``::

    result       the answer and its JSON fields, helpers for text
    trace        the JSON of a trace -> columns of events, parts of a window's time
    parallel     several processes, on this machine or on Ray
    collectives  matched collectives on one clock: which rank waited for which
    evidence     what a run recorded: matrices [ranks, steps], hardware readings
    inference    slow ranks, their cause and its physical reason
    costs        the parts of a step, the cost of waiting
    verdict      the verdict, the findings and the advice
    report       rows and text of the result

The modules beside these folders are the ways in. Start at ``engine``, which takes any path and chooses among the first three:

    run_analysis     a run directory
    trace_analysis   Kineto traces, which ``rank_traces`` reads
    durations        Flight Recorder dumps of a job that trains, or logs of NCCL Inspector (a folder)
    captured         a few profiled steps of a run, as after a capture
    online           a run in progress

Tables for all stages: ``causes``, ``remedies``, ``operations``; ``statistics`` has medians, excess and noise.

``hang``, ``compare``, ``whatif`` and ``perfetto`` answer questions of their own with the same stages.
"""
