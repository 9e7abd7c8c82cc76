"""One GPU through NVML, in the process of that GPU.

The way of a reading: ``gpu`` (``open``, ``sample``, ``close``) makes a pass every interval → the topics of each enabled collector
(``one_pass.Topic``): ``rows`` with ``tables`` (a row for a call or field value and its series), ``utilization``, ``gpm``,
``nvlink``, ``mig``, ``cooling``, ``status``, ``processes``, ``xid_events`` → ``asking``, which announces a call, makes it and
translates its error → readings and absences of the pass (``one_pass.Pass``) → a ``GpuSample`` for ``fleet/``.

``fields`` asks all field values of a pass in one call.
"""
