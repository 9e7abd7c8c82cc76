"""The watcher: follows live runs and raises alerts that only the analysis can raise.

Data flow of an alert: ``run_snapshots`` (which files grew) → ``followed_runs`` (analysis of what is new, at the rate of
``pace``) → ``conditions/`` (from an analysis) and ``liveness/`` (from ranks that stopped) → ``ledger`` (pending, firing,
resolved; in the store) → ``announcements`` (``findings.jsonl``) and ``delivery`` (to Alertmanagers and webhooks). ``watcher``
runs these once per interval; ``unreadable_files`` reports those, ``watcher_page`` serves its health, ``running_watcher`` builds
a watcher from the command line, ``signals`` handles signals; ``watcher_settings`` and ``options`` hold its thresholds; how long
a rank may be silent is computed in ``rankscope.analysis.evidence.liveness``.

After a restart, ``ledger`` still has each alert with its fingerprint and start. ``Outbox.owes`` (``deliver/outbox``) says what a
webhook was not sent yet; Alertmanagers are sent everything again (``delivery``).
"""
