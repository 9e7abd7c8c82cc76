"""Coordination of the ranks' profiled steps: rank 0 plans them, the other ranks ask it."""
