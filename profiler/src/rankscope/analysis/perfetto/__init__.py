"""Runs and traces as one Chrome JSON file for Perfetto: all ranks on one clock."""
