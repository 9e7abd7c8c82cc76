"""GPU-hours lost per host over all runs, and GPUs that are held and not used."""
