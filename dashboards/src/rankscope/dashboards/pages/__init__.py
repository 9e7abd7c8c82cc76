"""Pages: what is where, and in which words."""
