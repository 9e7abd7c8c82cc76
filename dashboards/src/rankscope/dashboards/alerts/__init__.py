"""Alerts of a run (``view``) and of all runs (``all_alerts``).

``data`` joins those of the watchers' files with those of ``prometheus``, as alerts of one kind (``record``).
"""
