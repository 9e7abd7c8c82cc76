"""The node exporter: readings of every GPU, of jobs, of Xids and of ranks as Prometheus text and OTLP.

``catalogue`` (read from ``catalogue.toml``) names every metric. The path of a reading::

    driver ─ nvml/ (in a process for each GPU) ─ fleet/ ─┐
    /proc, Slurm, kubelet ─ jobs/ ───────────────────────┤
    driver events, kernel log ─ xid/ ────────────────────┼─ pages/ ─┬─ web/ ─ Prometheus
    files of the ranks ─ spool/ ─────────────────────────┘          └─ OTLP ─ collector

``source`` defines the records and the protocols between these packages, ``loop`` the thread of a collector. ``commands`` parses
``settings`` (with ``options`` and ``config_file``), ``daemon`` forks, ``assembly`` creates the collectors, ``serving`` runs
them, and ``reload`` applies new settings. ``xids`` has the meaning of each Xid (``xids.toml``), ``simulated`` and
``simulated_gpu`` GPUs that are not there, ``reference`` the tables of the documentation, and ``wall_clock`` the times of a
clock that may be set.
"""
