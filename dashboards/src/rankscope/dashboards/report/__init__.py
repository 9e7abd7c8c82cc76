"""Report of a run's views as one file that needs no server: ``rankscope report``."""
