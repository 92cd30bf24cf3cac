"""Scenarios: the full inputs of a simulation, read from and written to TOML."""
