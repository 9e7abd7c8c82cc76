"""From evidence to slow ranks, with cause and physical reason."""
