"""Scenarios: what a simulation depends on, read from and written to TOML."""
