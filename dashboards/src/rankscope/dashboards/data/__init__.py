"""Data access of the pages: the ``RunSource`` protocol and its implementation for run directories on disk."""
