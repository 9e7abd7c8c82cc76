"""``rankscope capture``: requests to the ranks of a live run."""
