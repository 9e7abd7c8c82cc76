"""Pages about everything that the collectors know.

Data flow: ``page`` turns the fleet's state and the last result of each loop into metric families in the catalogue's order →
``exposition`` renders them as Prometheus text or OpenMetrics → ``web/`` serves them.

``dcgm`` renders the page with DCGM's names, for the counters file that ``dcgm_counters`` reads. ``otlp_metrics`` converts the
families to OpenTelemetry measurements, ``otlp_message`` builds the SDK's data types from them, and ``otlp`` exports them every
minute.
"""
