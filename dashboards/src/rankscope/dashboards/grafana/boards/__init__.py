"""Boards as code. Needs grafana-foundation-sdk, but only to change boards: the package ships the JSON generated here.

A module per board: ``cluster``, ``node`` (with ``node_lines`` and ``node_trouble``), ``run`` (with ``run_steps``, ``run_ranks``,
``run_process`` and ``run_queries``), ``collectives``, ``alerts``. What several of them show is in ``panels/``; ``generate``
writes the JSON.
"""
