"""Layout and wording of the pages."""
