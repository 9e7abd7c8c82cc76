"""From collectives of single ranks to matched ones on a common clock: which rank waited for which.

Read ``matched`` first: it runs the stages below and holds their results.

1. ``windows`` reduces a rank's trace to records. ``extract`` finds its collectives, ``message_size`` in ``traffic`` their sizes.
2. ``matching`` matches the records of different ranks that belong to one collective. ``arrivals`` has the table of both as
   ``growing_columns``.
3. ``clock`` corrects the clocks of hosts, by the ends of collectives. ``clock_series`` fits one clock over time.
4. In ``waits``, ``blame`` charges each wait to the rank that caused it, which ``origin`` follows over process groups. ``imposed``
   sums these. ``waiting`` has the waits in sends, receives and operations with a root.

Three modules use the matches: ``communication`` (moving data or waiting, hidden or exposed), ``bandwidth`` in ``traffic`` (with
the rates of ``links``) and ``figures`` (sizes and shares, for advice; ``payload`` in ``traffic`` tells gradients, shards and
activations apart).

A *transfer* is a collective without the waiting for its last rank, a *message* a send with its receive, and a *payload* the kind
of data that an operation carries.
``cycles`` finds the steps in Flight Recorder dumps and logs of NCCL Inspector, which do not mark them.
"""
