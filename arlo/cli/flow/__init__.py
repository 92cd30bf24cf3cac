"""`arlo plan flow`: a check, a plan, a page."""
