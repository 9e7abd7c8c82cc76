"""Rows, assessment and text of a result."""
