"""Jobs, pods, users and ranks of each GPU, for the join series ``gpu_job_info``.

Data flow: holders (``allocation_source`` of ``slurm``: files of the prolog, and of the ``kubelet`` with ``podresources``),
processes (``processes``: owner, ``cgroups`` and ``environment`` from ``/proc``) and ranks in the spool → ``join``, the occupancy
of each GPU or MIG device, and ``tenants`` of shared ones → ``collector``, the series of the page.

``party`` has the records, ``devices`` resolves a scheduler's device names, ``names`` looks up users and pods by uid, and
``bounded_calls`` bounds calls that may never return.
"""
