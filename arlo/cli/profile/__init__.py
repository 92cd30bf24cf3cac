"""`arlo compile profile`."""
