"""The ``rankscope`` command. Only this package imports all parts.

``start`` handles Ctrl-C from the first moment, ``main`` has the table of verbs (``VERBS``), each imported when it is used, and
turns errors into one line and an exit status. A verb is a module of its name in ``verbs/`` (``capture`` in ``live/``, ``demo`` in
``demo/``): it reads options, calls a part, and prints. Verbs of one part alone are in that part (``exporter/commands``,
``dashboards/commands``, ``alerts/commands``).

``terminal`` has options and output common to all verbs; ``selection`` and ``trace_options`` values of options;
``output_file`` and ``standard_output`` complete output or an error.
"""
