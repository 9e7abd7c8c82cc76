"""What leaves the host while it trains: metrics for the spool (``metrics_publisher``, from ``totals``), and traces over OTLP.

``otlp`` is the task that sends steps, ``spans`` says what the spans of a step are, ``otlp_sdk`` hands them to the SDK.
"""
