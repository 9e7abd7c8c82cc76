"""Samples beside the steps: the host's GPUs, and the Python stack of the training thread."""
