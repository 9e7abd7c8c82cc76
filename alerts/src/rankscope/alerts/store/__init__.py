"""The store: what alerting remembers, in one SQLite file for each state folder (``--state``).

The way of an alert through its tables: ``deliveries`` (accepted by the receiver, processed later) → ``episodes`` (since when an
alert fires) and ``actions`` (what is asked of runs) → ``messages`` (to be sent to a target) and ``told`` (alert states that a
target was or will be told) → ``disabled`` (targets that are gone). ``followed`` and ``alive`` are the watcher's ledger.

``database`` opens, creates, locks, checks and repairs the file, ``schema`` defines it, ``clock`` times attempts.
The users keep typed repositories on it: ``receive.inbox``, ``deliver.outbox``, ``deliver.outbox_queue``, ``watch.state``.
No module needs an extra.
"""
