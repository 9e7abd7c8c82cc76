"""The receiver of webhooks from Alertmanager and Grafana: stores them, adds a verdict, forwards them, and acts on runs.

Path of a delivery: ``web/`` (HTTP) → ``notification`` (one shape for both senders) → ``inbox`` (SQLite; stored before it is
acknowledged) → ``worker`` → ``episodes`` (is it new) → ``verdicts/`` (of the run) → ``forwarding`` (outbox), and ``actions/``
(captures and dumps). ``work_loop`` repeats work after failures, ``bounded_child`` runs commands within limits. ``config`` and
``receiver_settings`` are the operator's, ``counters`` has the metrics, ``processing`` the threads; ``receiver`` builds a
receiver, ``command`` is the command line.
"""
