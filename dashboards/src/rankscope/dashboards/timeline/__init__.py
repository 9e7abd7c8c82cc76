"""View of captured windows: every rank on one clock; capture requests."""
