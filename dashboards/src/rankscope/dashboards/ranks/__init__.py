"""View of one value per rank and step."""
