"""From one rank's Kineto trace to columns of events, and to the parts of a window's time.

Read ``columns`` first: it keeps the relevant events as the arrays of a ``Trace``. The input is a path or URL. ``locations`` opens
it, and ``trace_text`` decompresses it to blocks of text. ``event_stream`` decodes a few thousand events at a time into the types
of ``schema``. ``categories`` has the codes of their categories, ``numbering`` makes arrays of their values. ``merged`` takes a
file of several ranks apart. ``quality`` leaves damaged events out: those whose ``event_times`` cannot be right, and what the
``runtime_calls`` contradict.

``work`` sorts the events into compute, communication and copies, by the tables of ``classify``, and partitions a window, with
the interval arithmetic of ``intervals``. The output is a ``Trace``, its ``Work`` and a ``Partition``. ``window_detail`` adds
streams, copies, classes of kernels (``kernels``) and launches, from the columns of ``detail_columns``. ``annotations`` tell what
the host did while the device waited. ``possible`` has the limits above which a number in a record is damage.
"""
