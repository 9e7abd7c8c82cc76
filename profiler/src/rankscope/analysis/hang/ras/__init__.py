"""From answers of NCCL RAS to the ranks that the others wait for.

1. ``answers`` obtains the answers: from a live job, twice, or those that were kept in a run.
2. ``snapshot`` has the communicators of one answer, read by ``json_form`` or ``text_form``.
3. ``ras_judgement`` finds the global ranks, compares two snapshots and names the ranks that are unreachable or behind.
4. ``joining`` joins that with the report on the Flight Recorder dumps.
"""
