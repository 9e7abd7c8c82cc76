"""Data of runs on disk: found, analysed beside the server, followed while they grow, cached.

``run_folder`` lists the runs, ``disk`` serves their data (``RunSource``). What is missing is computed by ``builders``: a ``jobs``
process per task of ``tasks`` within the bounds of ``memory``, a ``follow`` process per live run. ``derive`` computes everything
that the pages show of a run, with ``matrices`` (values of ranks and steps), stored as ``tiles``, and ``samples`` (of GPUs).
``cache`` keeps it across restarts, as long as ``footprint`` sees no change in the run. ``endings`` has the reasons for which an
analysis ended without a result; how the ranks of a run ended is in ``run_folder``.

How long a value holds: until ``footprint`` sees a change; of a live run the what-if and comparisons for ``WHATIF_EVERY_S``
(``disk``). A live run is read again after the pause in ``follow``, the list of runs after ``look_again_s`` (``run_folder``).
"""
