"""The receiver of webhooks from Alertmanager and Grafana: stores them, adds a verdict, forwards them, and acts on runs.

Path of a delivery: ``server`` and ``app`` (HTTP) → ``authentication`` → ``notification`` (one shape for both senders)
→ ``inbox`` (SQLite; stored before it is acknowledged) → ``worker`` → ``episodes`` (is it new)
→ ``known_runs``, ``analyst``, ``facts`` (the run's verdict) → ``forwarding`` (outbox; also verdicts that come later), and
``actor`` (captures and dumps; ``captured`` describes their results). ``config`` is the operator's file, ``counters`` has the
receiver's metrics, ``setup`` builds a receiver, and ``command`` is the command line.
"""
