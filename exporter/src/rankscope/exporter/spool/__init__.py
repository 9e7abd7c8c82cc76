"""Text files that the ranks of this node leave for the exporter.

The way of a series: a rank replaces its file in the ``folder`` (or in its pod's, found by ``process_folders``) → ``file`` reads
it without trusting its writer, parses and checks it (``histogram``); ``again`` reads only the values when nothing else changed →
``reading`` decides whose files count, how old they are, and merges them; ``slots`` keeps two runs apart → a ``SpoolSample`` for
``pages/``, ``jobs/`` and OTLP. ``series`` has the records.
"""
