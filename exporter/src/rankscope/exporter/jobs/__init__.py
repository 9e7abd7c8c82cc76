"""Jobs, pods, users and ranks of each GPU, for the join series ``gpu_job_info``.

The way of a series: who holds a GPU (``slurm``: files of the prolog; ``kubelet`` with ``podresources``), who uses it
(``processes``: owner, control groups and ``environment`` from ``/proc``) and what ranks say in the spool → ``join``, one answer
per GPU or MIG device → ``collector``, the series of the page.

``party`` has the records, ``devices`` finds the GPU that a scheduler means, ``users`` the names of users. ``deadline`` bounds
every call that may never return.
"""
