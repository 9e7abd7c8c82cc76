"""The recorder: every step of every rank, and periodically a profiled window, written into the run directory.

The path of a step::

    training thread (rank/) -> words in shared memory (ring) -> helper process (helper/) -> run directory, spool, OTLP

Users import ``step`` (in the script) or use ``launch`` (``rankscope run``, through the folder ``_site`` on ``PYTHONPATH``);
``integrations/`` has the callbacks of frameworks. Only ``rank``, ``step`` and ``integrations`` import torch.

Both processes know the other modules. ``settings`` has every option, once; ``plan`` the profiled steps; ``words`` what a rank
writes, ``ring`` the memory for it, ``handover`` the description of the rank, ``scratch`` its folder in local memory,
``flight_files`` the dumps in it. ``step_decoder`` makes phases, waits and work of the words of a step, with ``phases``,
``evaluation`` and ``work``. ``starts`` assigns ranks to attempts, ``missing_ends`` adds ends that no helper recorded,
``group_signals`` passes on to the job the signals that do not reach it without its launcher, ``spool`` writes the rank's text
file, ``masking`` hides secrets in the recorded command, and ``trackers`` has the pages of experiment trackers.
"""
