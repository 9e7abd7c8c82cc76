"""The ``rankscope`` command. Only this package imports all parts.

``start`` handles Ctrl-C from the first moment, ``main`` has the table of verbs (``VERBS``), each imported when it is used, and
turns errors into one line and an exit status. A verb is a module of its name: it reads options, calls a part, and prints. Verbs
of one part alone are in that part (``exporter/commands``, ``dashboards/commands``, ``alerts/commands``).

``terminal`` has options and output common to all verbs; ``selection``, ``share`` and ``trace_options`` values of options;
``output_file`` and ``standard_output`` complete output or an error. ``schema`` lists every JSON that has a schema. Requests to a
live run: ``capture`` with ``capturing`` and ``dumping``, ``live_run``, ``profiled``, ``request_id``, ``standstill``.
``demo/`` is ``rankscope demo``.
"""
