"""Dash callbacks that react to changes of the address, the selection and the run."""
