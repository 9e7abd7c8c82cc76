"""Pages about everything that the collectors know.

The way of a reading: ``page`` takes the state of the fleet and the last result of each loop and makes metric families in the
catalogue's order → ``exposition`` renders them as Prometheus text or OpenMetrics → ``web/``.

``dcgm`` makes the page with DCGM's names, by the file of counters that ``dcgm_counters`` reads. ``otlp_metrics`` names the
families' points in OpenTelemetry, ``otlp_pipeline`` hands them to the SDK's instruments, and ``otlp`` exports them every minute.
"""
