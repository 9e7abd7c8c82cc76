"""Xid errors of GPUs and SXids of NVSwitches, each counted once.

The path of an error:

1. An NVML event (``nvml/xid_events``) or a record of the ``kernel_log`` (parsed by ``kernel_lines``).
2. ``journal`` matches the same error from both sources (``matching``) and adds the job on the GPU.
3. ``journal_file`` (JSON Lines on disk) stores it, ``tallies`` counts it by device, code and severity.
4. ``series`` turns the counts into series, which ``collector`` returns for the page.

``entry`` defines the records.
"""
