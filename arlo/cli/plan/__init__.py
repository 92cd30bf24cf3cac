"""`arlo plan`."""
