"""`arlo trace`."""
