"""The run directory (format ``rankscope.run/2``): written by the recorder, read by all other parts."""
