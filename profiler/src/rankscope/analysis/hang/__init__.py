"""From the Flight Recorder dumps of a hung job to the ranks that all others wait for.

Read ``diagnosis`` first: it calls the other modules in this order. ``files`` finds the dumps and reads them, pickles with the
safe reader in ``pickles``; ``records`` has one rank's dump, whatever torch version or backend wrote it. ``groups`` matches
process groups over all ranks, ``progress`` says how far each rank came in each group, ``meetings`` who came to each unfinished
collective or transfer and who did not. ``blockers`` follows these waits to the ranks at their end, and ``mismatch`` finds
ranks that came with another operation, size or data type.

The output is the ``HangReport`` of ``result``, with the sentences of ``wording``; ``render`` prints it.
"""
