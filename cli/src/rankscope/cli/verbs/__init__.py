"""Verbs of the command that have no folder of their own, and what only they use."""
