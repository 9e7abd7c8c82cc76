"""Types of the result of an analysis, which are also the JSON of ``rankscope analyze --format json``.

Read ``analysis`` first: ``Analysis`` is the whole result, with verdict, findings and a row per rank. The types of its parts are
in ``costs`` (waterfall, wait attribution, throughput, memory, advice), ``collectives`` (bandwidths, waits, clock offsets) and
``detail`` (kernels, streams and launches of a window, only from traces). ``text`` formats results, for people and as JSON.

Nothing is computed here. All stages of the analysis import these types; terminal, pages, reports and alerts read them.
Fields are only added within a schema version (docs/compatibility.md). ``None`` means unknown, never 0.
"""
