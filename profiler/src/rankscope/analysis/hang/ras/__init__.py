"""From answers of NCCL RAS to the ranks that the others wait for.

1. ``asking`` obtains the answers: from a live job, twice, or those that were kept in a run.
2. ``snapshot`` has the communicators of one answer, read by ``json_form`` or ``text_form``.
3. ``places`` finds the global ranks of the ranks in communicators.
4. ``judging`` compares two snapshots and names the ranks that are unreachable or behind.
5. ``joining`` joins that with the report on the Flight Recorder dumps.
"""
