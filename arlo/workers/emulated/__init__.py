"""Emulated engines: Triton models that take the time of a table."""
