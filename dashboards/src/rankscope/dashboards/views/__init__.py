"""Views of a run: one module each, all listed in ``registry``."""
