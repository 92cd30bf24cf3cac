"""`arlo top`."""
