"""The what-if analysis: step times on the dependency graph with some of the operations at their ideal durations.

``whatif_of_paths`` chooses by the input:

- a run: ``run_answer`` plays its step records as a chain of stretches (``step_graph``), with ranks, phases and
  causes (``cause_parts``) ideal (``step_scenarios``);
- traces, and runs whose records do not suffice: ``windows_answer`` plays the collectives of profiled steps (``window_graph``);
- a file of traced operations: ``operations_answer`` plays what ``operations_file`` read, in the order of ``schedule``.

What is ideal: the rank in the middle, ``StretchBlock.typical`` (``step_graph``), which ``step_scenarios`` plays for chosen ranks
or for all of them; of a phase, ``StretchBlock.lost_in``; in profiled steps ``_ideal`` (``window_graph``).

The last two sources are played on one kind of ``graph``. What ranks and hosts save is what the verdict says (``healed``), but
for traced operations. ``outcome`` turns step times into the ``whatif_result``, which ``whatif_terminal`` prints.
"""
