"""The run directory (format ``rankscope.run/2``): written by the recorder, read by all other parts.

- What is recorded: ``records`` (all record types), ``step_columns`` (the columns of a step record, once for all parts),
  ``durations`` (collectives), ``ras`` (answers of NCCL RAS), ``metrics`` (names of a rank's metrics in the spool).
- Where it lies: ``paths``, ``named`` (which run a path means), ``links`` (addresses of its pages).
- Writing: ``segment_writer`` (streams of records), ``small_files`` (replaced or appended), ``control`` and ``control_names``
  (requests to a running job).
- Reading: ``reader`` (a run, finished, live or damaged), ``follow`` (only what is new), ``segments`` and ``step_segments``,
  ``world_size``. ``run_files`` opens every file without following links; ``decoders`` prepares threads.
"""
