"""Evidence of traces: kernels and operators of a rank beside those of its peers."""
