"""Records or traces in; who, why, how much and what next out. Pure: no torch, no network."""
