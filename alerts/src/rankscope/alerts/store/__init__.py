"""The store: the state of alerting in one SQLite file per state folder (``--state``).

An alert passes through these tables, in this order:

- ``deliveries``: webhooks accepted by the receiver, to be processed
- ``episodes`` (when an alert began to fire) and ``actions`` (requests to runs)
- ``messages`` (the outbox of each target) and ``alert_states`` (states that were sent to a target, or are queued for it)
- ``disabled``: targets that answered 410 (Gone)

``alerts`` and ``active_runs`` are the watcher's ledger.

``database`` opens, creates, locks, checks and repairs the file, ``schema`` defines it.
Typed repositories on it: ``receive.inbox``, ``deliver.outbox``, ``watch.ledger``.
No module needs an extra.
"""
