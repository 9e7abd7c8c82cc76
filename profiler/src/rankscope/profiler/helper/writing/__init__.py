"""Writing of a rank's part of the run directory: records, reduced windows, raw traces."""
