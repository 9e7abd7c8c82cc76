"""Data of runs on disk: found, analysed beside the server, followed while they grow, cached."""
