"""One GPU through NVML, in the process of that GPU.

The path of a reading:

1. ``gpu`` (``open``, ``sample``, ``close``) makes a pass every interval.
2. It runs the topics of each enabled collector (``sample_pass.Topic``; ``gpu.topics_of`` lists them, ``catalogue.toml`` the
   collectors): ``rows`` with ``tables`` (one row per NVML call or field
   value), ``utilization``, ``gpm``, ``nvlink``, ``mig``, ``cooling``, ``status``, ``processes``, ``xid_events``.
3. ``calls`` announces each NVML call, makes it and translates its error.
4. Readings and absent metrics of the pass (``sample_pass.SamplePass``) become a ``GpuSample`` for ``fleet/``.

``fields`` reads all field values of a pass in one call.
"""
