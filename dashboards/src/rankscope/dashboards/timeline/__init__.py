"""View of captured windows: every rank on one clock; capture requests.

``windows`` lists the windows of a run, ``build_window`` makes one with all ranks on one clock, ``data`` has it. ``parts`` and
``raw_events`` cut the time of a rank, which ``lanes`` and ``figures`` draw; ``kernels`` is the table below. ``capture``
requests a profile of the next steps.
"""
