"""Processes that call the driver, one for each GPU, so that a call that never returns costs one GPU only.

The path of a reading: ``worker`` samples its GPU (``nvml/``) → ``wire`` (readings that differ from the last sample, in
MessagePack) → ``children`` (the daemon's end) → ``gpu_slot`` (last sample, reason for being down, next attempt; ``counters``
keep cumulative counters monotonic across restarts) → ``nvml_fleet``, which gives a page the state of all GPUs.

``gpu_life`` has the states of a GPU and their transitions; ``resets`` recognises that a GPU was initialised anew. ``nursery`` and
``nursery_process`` fork the children from a small process (zygote). ``call_board`` shows which NVML call a child is in, and
``timeouts`` holds the timeouts. A call that hangs is noticed by ``children`` (``Child.trouble``); ``gpu_slot`` then has the
process killed, and decides when to try again. ``survey`` compares the GPUs of ``probe`` (driver) and ``pci`` (sysfs);
``inventory`` keeps known GPUs on disk.
"""
