"""From NCCL RAS and the Flight Recorder dumps of a hung job to the ranks that all others wait for.

``ras`` asks the job which ranks are missing or behind, and joins that with what the dumps show. For dumps, read ``diagnosis``
first: it calls the other modules in this order.

1. ``files`` finds the dumps and reads them, pickles with the safe reader in ``pickles``.
   ``job_dumps`` leaves out those of earlier jobs, and checks the ranks in their names.
2. ``flight_records`` has one rank's dump, in the same form for all versions of torch and all backends.
3. ``groups`` matches process groups over all ranks.
4. ``progress`` finds the last operation of each rank in each group.
5. ``meetings`` lists the unfinished collectives and transfers, with the ranks that arrived and those that did not.
6. ``blockers`` follows the waits to the ranks at their end.
7. ``mismatch`` finds ranks that came with another operation, size or data type.

The output is the ``HangReport`` of ``hang_result``, with the sentences of ``hang_wording``; ``hang_terminal`` prints it.
"""
