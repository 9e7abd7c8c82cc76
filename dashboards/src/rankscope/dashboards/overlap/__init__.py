"""View of profiled time: compute, communication, their overlap, collectives. All of it is in the analysis: no ``data``."""
