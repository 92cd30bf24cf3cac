"""Plans for flows: how many instances of which variants, and which share of the rows takes which path."""
