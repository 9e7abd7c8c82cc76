"""Text of the pages: ``wording`` (numbers, verdicts), ``units``, ``causes`` (labels), ``inert`` (names made harmless)."""
