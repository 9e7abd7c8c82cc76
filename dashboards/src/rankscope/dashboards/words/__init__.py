"""Text of the pages: ``wording`` (numbers, verdicts), ``units``, ``inert`` (names made harmless)."""
