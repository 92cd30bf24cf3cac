"""The commands `arlo compile`, `arlo compile inspect` and `arlo compile verify`."""
