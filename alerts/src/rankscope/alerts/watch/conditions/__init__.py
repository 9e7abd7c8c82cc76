"""Conditions in the records of a run that raise an alert if they last.

``findings`` (of an analysis, within ``budgets``) and ``regressions`` (against the run's own ``step_past``) → ``candidate``
(labels, annotations, cost) → ``shared_alerts`` (many into one) → ``confirmation`` (of stragglers, on new steps).
"""
