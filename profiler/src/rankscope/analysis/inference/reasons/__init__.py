"""Reasons for a slow rank: its signals, its line of code, its kernels, and the state of its GPU."""
