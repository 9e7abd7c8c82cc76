"""The receiver of webhooks from Alertmanager and Grafana: stores them, adds a verdict, forwards them, and acts on runs.

Path of a delivery: ``server`` and ``app`` (HTTP) → ``authentication`` and ``bodies``, or ``refusals`` → ``notification`` (one
shape for both senders) → ``inbox`` (SQLite; stored before it is acknowledged) → ``worker`` → ``episodes`` (is it new) →
``known_runs``, ``analyst``, ``facts`` (the run's verdict) → ``forwarding`` (outbox) and ``late_verdicts``, and ``actor``
(captures and dumps, in a ``bounded_child``; ``captured`` describes their results). ``config`` and ``settings`` are the
operator's, ``counters`` has the metrics, ``processing`` the threads; ``setup`` builds a receiver, ``command`` is the command
line.
"""
