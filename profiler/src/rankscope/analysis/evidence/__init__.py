"""From the records of a run to matrices [ranks, steps], and to readings that belong to the same steps.

Read ``step_table/steps.py`` first: a ``StepTable`` has a matrix for each metric, NaN where a rank has no record or no value. It
comes about in three modules of that folder: ``rank_files`` reads the step records of all ranks, several at once;
``rank_columns`` turns the records of one rank into a column per metric; ``table_builder`` puts the columns into the matrices,
also while the run continues.

``typical`` separates typical steps, which verdicts are about, from rare ones. ``compared`` has the own times of ranks that do
the same work (``peers``), which ``inference`` judges, and the waits in them. In ``kernels``, ``device_times`` has own times on
devices, from traces and profiled steps instead of step records; ``kernel_ratios`` and ``kernel_calls`` compare the kernels of a
rank with its peers'; ``unknown_kernels`` are those that may be communication where none is known;
``quality_warnings`` are about damaged traces.

Other modules use the table: ``hardware`` (GPU readings per step), ``activities`` (time of checkpoints and evaluations),
``throughput`` (samples, tokens and FLOP per second), ``order`` (largest and middle values of each step), ``liveness`` (does the
job still run), ``damage`` (warnings about unusable records). Judgements, such as which rank is slow, follow in ``inference``.
"""
