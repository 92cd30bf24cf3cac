"""The papers' algorithms as printed, runnable for comparison, for parts that the product improves."""
