"""Compare two runs, or a run before and after a step, or runs of several world sizes; test changes against noise.

``compare_runs`` reads each side (``recording``) and selects the steps and work to compare (``comparable_steps``). ``pair``
compares two sides: ``quantities`` of the steps as series, which ``shift`` tests against their own noise and ``outcomes`` turns
into outcomes, and ``rank_shifts`` for each rank. ``scaling`` compares several world sizes. The ``compare_result`` is worded in
``compare_wording`` and printed by ``compare_terminal``.
"""
