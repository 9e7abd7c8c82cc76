"""What a step's time consists of, and what waiting costs."""
