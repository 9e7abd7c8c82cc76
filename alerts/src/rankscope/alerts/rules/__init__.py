"""Prometheus rules as data, with the programs that read it and the ``runbooks/`` beside this folder.

The build steps of the rule file: ``*.rules.yaml`` and ``*.alerts.yaml`` (templates), filled with ``thresholds.toml`` and the
operator's overrides (``thresholds``) → ``rule_file`` (one rule file, one runbook per alert).
``phrases.toml`` has texts of several alerts, ``external.toml`` the series of other exporters. ``xid_policy`` has
the alert of each Xid; ``explain`` describes an alert or Xid; ``command`` is the command line.
"""
