"""View of profiled time: compute, communication, their overlap, collectives."""
