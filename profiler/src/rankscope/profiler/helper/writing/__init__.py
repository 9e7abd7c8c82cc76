"""Writing of a rank's part of the run directory: records, reduced windows, raw traces.

``store`` writes records and bounds them (``--retain``), on the ``writer_thread``. ``trace_reducer`` reduces the trace of a
window to records, with the reason of ``no_activity`` where it has nothing of the device; ``window_judge`` finds steps that look
wrong, whose traces ``trace_retention`` keeps.
"""
