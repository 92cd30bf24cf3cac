"""How many workers there should be."""
