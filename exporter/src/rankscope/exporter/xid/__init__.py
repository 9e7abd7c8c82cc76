"""Xid errors of GPUs and SXids of NVSwitches, each counted once.

The way of an error: NVML's event (``nvml/xid_events``) or a record of the ``kernel_log`` (read by ``kernel_lines``) →
``journal``, which recognises the same error from both and adds the job that was there → ``journal_file`` (JSON Lines on disk)
and ``tallies`` (counts by device and code) → ``collector``, the series of the page. ``entry`` has the records.
"""
