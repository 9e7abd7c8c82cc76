"""Callbacks that tell the recorder what a framework's own training loop knows. Nobody imports these but scripts that use them."""
