"""View of the GPUs of a run's hosts."""
