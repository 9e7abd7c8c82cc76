"""Waits for ranks at collectives: who waits, for whom, and what healing a rank saves."""
