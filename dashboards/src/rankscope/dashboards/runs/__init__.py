"""List of runs."""
