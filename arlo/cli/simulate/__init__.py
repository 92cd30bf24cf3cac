"""`arlo simulate`."""
