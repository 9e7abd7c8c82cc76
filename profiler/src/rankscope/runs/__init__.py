"""The run directory (format ``rankscope.run/1``): what the recorder writes and everyone else reads."""
