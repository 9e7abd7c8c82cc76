"""Callbacks that report to the recorder what a framework's training loop knows. Only scripts that use them import them."""
