"""Replay of a recorded run: which of the watcher's alerts would have fired, and when.

``growing_run`` lets a copy of the run grow as it was recorded, ``replay`` puts the real watcher in front of it with a clock that
it sets forward, ``result`` is the answer as JSON and as text, ``command`` is the command line.
"""
