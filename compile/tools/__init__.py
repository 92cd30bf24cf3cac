"""The commands `arlo compile`, `arlo inspect` and `arlo verify`."""
