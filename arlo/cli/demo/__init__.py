"""`arlo demo`."""
