"""What is known of a run: the interface of the pages to their data, and the data that several features show.

``source`` is the interface (``RunSource``), which ``store`` implements for folders of runs; ``run_data`` has the data of one run,
each part read on first access, and ``brief`` a summary for lists. Kinds of data: ``metrics`` (of the heat map), ``trend``,
``script``, ``topology`` and ``hosts``, ``hardware`` and ``events`` of GPUs. ``memory_cache`` and ``cached_files`` keep what was
read, ``background`` answers of a network; ``progress`` and ``viewer`` are those of a request.
"""
