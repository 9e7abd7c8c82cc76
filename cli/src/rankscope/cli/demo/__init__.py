"""``rankscope demo``: real training with one planted fault, through every part of rankscope.

``story`` is the job from beginning to end, with the checks of each part. ``train`` trains and plants the fault (``FAULTS``).
``faults`` has what ``--fault`` accepts, which is the same list, and what the verdict must say. ``services`` starts exporter,
dashboard and receiver; ``commands`` is the command line.
"""
