"""Programs that run in the rivals' own environments; they import nothing of Arlo."""
