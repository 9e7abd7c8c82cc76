"""Analysis of records or traces: which ranks are slow, why, at what cost, and what to do next. Pure: no torch, no network."""
