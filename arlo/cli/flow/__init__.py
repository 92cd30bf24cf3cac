"""`arlo flow`, one module for each action."""
