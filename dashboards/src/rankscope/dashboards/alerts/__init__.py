"""Alerts of a run and of all runs."""
