"""What the gateway lets Python do for it."""
