"""Verdicts about the runs that alerts name.

``known_runs`` (which run) → ``analyst`` (analysis in a child process) → ``run_verdict`` (the part that an alert includes);
``late_verdicts`` come after their alert.
"""
