"""The number of workers that there should be."""
