"""From the desired placement to the observed one, one small step at a time."""
