"""The node exporter: readings of every GPU, of jobs, of Xids and of ranks as Prometheus text and OTLP.

``catalogue`` (read from ``catalogue.toml``) names every metric. The way of a reading::

    driver ─ nvml/ (in a process for each GPU) ─ fleet/ ─┐
    /proc, Slurm, kubelet ─ jobs/ ───────────────────────┤
    driver events, kernel log ─ xid/ ────────────────────┼─ pages/ ─┬─ web/ ─ Prometheus
    files of the ranks ─ spool/ ─────────────────────────┘          └─ OTLP ─ collector

``source`` has the records that travel and the protocols between the folders, ``loop`` the thread of a collector. ``commands``
reads ``settings``, ``daemon`` forks, ``assembly`` puts the collectors together and ``serving`` runs them.
"""
