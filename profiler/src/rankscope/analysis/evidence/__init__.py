"""What a run recorded, as matrices [ranks, steps] and readings that belong to them."""
