"""What can be seen of a run: each view a module, all of them in ``registry``."""
