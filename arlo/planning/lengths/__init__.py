"""How many runtimes, for which maximum lengths, and whether they pay."""
