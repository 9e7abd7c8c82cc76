"""The watcher: follows live runs and raises alerts that only the analysis can raise.

Data flow of an alert: ``runs`` (which files grew) → ``following`` (analysis of what is new) → ``findings``, ``regressions`` (from
an analysis), ``signs``, ``life``, ``standstill``, ``dumps`` (from ranks that stopped) → ``candidate`` (labels, annotations, cost)
→ ``confirmation`` (of stragglers, on new steps) → ``ledger`` (pending, firing, resolved; in the store) → ``announcements``
(``findings.jsonl``) and ``delivery`` (to receivers). ``watcher`` runs these once per interval, ``page`` serves the watcher's own
health, ``setup`` builds a watcher from the command line; ``options`` and ``budgets`` hold its thresholds.
"""
