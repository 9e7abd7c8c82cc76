"""Processes that call the driver, one for each GPU, so that a call that never returns costs one GPU only.

The way of a reading: ``worker`` samples its GPU (``nvml/``) → ``changes`` (readings that differ from the last sample) → ``wire``
(MessagePack over a socket) → ``children`` (the daemon's end) → ``gpu_slot`` (last sample, reason for being down, next attempt;
``counters`` continue over a restart) → ``nvml_fleet``, which answers a page with the state of all GPUs.

``nursery`` and ``nursery_process`` fork the children from a lean process. ``call_board`` shows which call a child is in, and
``patience`` how long that may take. ``survey`` compares the GPUs of ``probe`` (driver), ``pci`` (sysfs) and ``inventory`` (disk).
"""
