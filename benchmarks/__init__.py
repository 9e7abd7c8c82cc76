"""Measurements behind the figures of the documentation; README.md says how to run them. Not part of the distribution."""
