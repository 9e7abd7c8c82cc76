"""Alerts about ranks that stopped or ended.

``attempt_liveness`` (whose files grow) and ``outage`` (who was silent first) → ``monitor``, with ``dumps`` that show the
culprit → ``liveness_alerts`` (what they say).
"""
