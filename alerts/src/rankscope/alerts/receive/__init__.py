"""The receiver of webhooks from Alertmanager and Grafana: stores them, adds a verdict, forwards them, and acts on runs.

Path of a delivery: ``server`` and ``app`` (HTTP) → ``authentication`` → ``notification`` (one shape for both senders)
→ ``inbox`` (SQLite; stored before it is acknowledged) → ``worker`` → ``episodes`` (is it new) → ``decisions`` (what to do)
→ ``known_runs``, ``analyst``, ``facts`` (the run's verdict; ``late_verdicts`` if it comes later) → ``forwarding`` (outbox),
and ``actor`` (captures and dumps; ``captured`` puts their result into words).
``config`` is the operator's file, ``counters`` the receiver's metrics, ``setup`` builds a receiver;
``command`` is the command line.
"""
