"""Processing of ranks in several processes, on this machine or on a Ray cluster.

Read ``workers`` first. An ``Engine`` gets a function and a list of items, usually one trace or rank each, and yields the results
in the order of the items. ``workers`` has the engine for this process and for local worker processes.

``ray_engine`` has the engine for an existing Ray cluster, to which ``ray_cluster`` connects. Ray is imported only for
``--engine ray``.
"""
