"""`arlo up`: from a model to an answer."""
