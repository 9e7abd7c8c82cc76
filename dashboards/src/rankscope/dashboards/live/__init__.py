"""Dash adapter: draws the model of a page live and keeps it up to date."""
