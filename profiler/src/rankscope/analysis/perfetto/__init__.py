"""Runs and traces as one Chrome JSON file for Perfetto: all ranks on one clock.

Begin with ``export``, which makes the file. ``selection`` has the steps and ranks that the user chose. ``run_source`` (a run
directory, counted by ``survey``) and ``traces_source`` (Kineto traces) read the input twice: the first reading yields the
``plan``, with what fits and how clocks are corrected, and the second one writes rank by rank. Each kind of track has a module:
``step_tracks`` (steps, phases, blocked time), ``collective_tracks`` (collectives, waits, arrows), ``raw_trace`` (all events of a
trace), ``hardware_tracks`` (GPU samples), ``verdict_tracks`` (verdict, findings, notes). They hand slices in unix nanoseconds to
``chrome_json``, the only module that knows the format. Out come the bytes of the file and the summary in ``export_result``.
"""
