"""`arlo simulate trace`."""
