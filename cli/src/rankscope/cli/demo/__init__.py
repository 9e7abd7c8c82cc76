"""``rankscope demo``: real training with one planted fault, through every part of the house."""
