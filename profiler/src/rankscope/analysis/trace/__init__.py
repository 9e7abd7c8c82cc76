"""From the JSON of a trace to columns of events, and to the parts of a window's time."""
