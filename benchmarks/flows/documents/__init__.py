"""Pages of manuals through four stages: lines are found, turned, read, and together told which manual they are of."""
