"""Replay of a recorded run: which of the watcher's alerts would have fired, and when.

``growing_run`` writes a copy of the run in the order in which it was recorded. ``replay`` runs the real watcher over that copy
with a simulated clock. ``replay_result`` is the result as JSON and as text, ``command`` is the command line.
"""
