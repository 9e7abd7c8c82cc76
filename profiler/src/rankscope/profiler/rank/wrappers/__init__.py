"""Wrappers around functions of torch and Python, through which an unmodified script is recorded."""
