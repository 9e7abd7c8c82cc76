"""GPU-hours lost per host over all runs."""
