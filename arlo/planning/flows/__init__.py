"""Plans for flows: the number of instances of each variant, and the share of the rows on each path."""
