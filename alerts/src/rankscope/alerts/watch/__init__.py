"""The watcher: follows live runs and raises alerts that only the analysis can raise.

Data flow of an alert: ``runs`` (which files grew) → ``following`` (analysis of what is new, at the rate of ``pace``) →
``findings``, ``regressions`` (from an analysis), ``liveness``, ``liveness_monitor``, ``life_alerts``, ``dumps`` (from ranks
that stopped) → ``candidate`` (labels, annotations, cost), ``collapsed`` (many into one) → ``confirmation`` (of stragglers, on
new steps) → ``ledger`` (pending, firing, resolved; in the store) → ``announcements`` (``findings.jsonl``) and ``delivery`` (to
receivers). ``watcher`` runs these once per interval; ``unreadable`` reports files that it cannot read, ``page`` serves its
health, ``setup`` builds a watcher from the command line, ``signals`` handles signals; ``settings``, ``options`` and ``budgets``
hold its thresholds.
"""
