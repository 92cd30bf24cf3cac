"""The number of runtimes, their maximum lengths, and whether they pay."""
