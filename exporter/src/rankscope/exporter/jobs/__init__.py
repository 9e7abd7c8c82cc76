"""Jobs, pods, users and ranks of each GPU, for the join series ``gpu_job_info``.

Data flow: holders (``slurm``: files of the prolog; ``kubelet`` with ``podresources``), processes (``processes``: owner, cgroups
and ``environment`` from ``/proc``) and ranks in the spool → ``join``, one answer per GPU or MIG device, and ``tenants`` of
shared ones → ``collector``, the series of the page.

``party`` has the records, ``devices`` resolves a scheduler's device names, ``users`` looks up user names, ``pod_names`` names of
pods by uid, and ``deadline`` bounds calls that may never return.
"""
