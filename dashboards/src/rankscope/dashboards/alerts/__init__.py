"""Alerts of a run and of all runs, and replays of the watcher."""
