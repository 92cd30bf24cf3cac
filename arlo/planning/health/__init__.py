"""Which worker has become slow."""
