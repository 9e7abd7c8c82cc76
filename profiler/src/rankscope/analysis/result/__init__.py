"""The result of an analysis: its JSON fields, and helpers for its text."""
