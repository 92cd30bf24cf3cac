"""Detection of workers that have become slow or keep failing."""
