"""What happens when the address, the selection or the run changes."""
