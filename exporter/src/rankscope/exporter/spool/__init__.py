"""Text files that the ranks of this node leave for the exporter.

Data flow: ``folder`` has the ranks' files → ``file`` reads and checks them as untrusted input → ``reading`` merges them into a
``SpoolSample`` for ``pages/``, ``jobs/`` and OTLP.

``incremental_parse`` reads only the values of a file if nothing else changed. ``series`` has the
records.
"""
