"""`arlo profile`."""
