"""Alerts about ranks that stopped or ended.

``attempt`` (whose files grow) and ``outage`` (who was silent first) → ``monitor``, with ``dumps`` that show the culprit →
``alerts`` (what they say).
"""
