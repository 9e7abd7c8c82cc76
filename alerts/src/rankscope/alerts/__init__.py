"""Alerts about training runs and GPUs: their rules, the run watcher, the receiver of webhooks, and delivery.

``watcher_alerts`` names the alerts of the watcher; all others are Prometheus rules. An alert takes one of two paths::

    metrics ─ rules/ (a Prometheus evaluates them) ─────────────┐
                                                                ├─ Alertmanager ─ receive/ ─ deliver/ ─ chat, pager, webhook
    run directory ─ watch/ (analysis of the steps) ─ deliver/ ──┘

``runbooks/`` has a page for each alert. ``replay/`` runs the watcher over a recorded run, ``store/`` keeps the state of alerting
on disk. ``payload`` is Alertmanager's webhook format, ``toml_file`` reads the operator's files, ``commands`` is
``rankscope alerts``, ``output`` prints events.
"""
