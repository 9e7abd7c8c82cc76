"""Declarative model of a page."""
