"""List of runs.

``view`` has the columns and the row of a run. Its values come from ``data.source.RunSummary`` (read from the folder at once) and
``data.brief.Brief`` (of the analysis, which may still be missing).
"""
