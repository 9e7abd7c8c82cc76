"""Prometheus rules and their runbooks, as data with the programs that read it.

The way of a rule: ``*.rules.yaml`` and ``*.alerts.yaml`` (templates), with ``thresholds.toml`` and the operator's own numbers
(``thresholds``) → ``rule_file`` (one rule file, one runbook per alert) → ``export`` (into a folder, without overwriting edits).
``tables`` has the Xid policy and the metrics that other exporters publish; ``explain`` answers what an alert or Xid means.
``command`` is the command line.
"""
