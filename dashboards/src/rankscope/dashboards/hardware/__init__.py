"""View of the GPUs of a run's hosts: one gauge of all (``figures``), one GPU over time (``lines``), ``table`` of all."""
