"""Cascades, simulated: rows from records or from a population, the schemes that they are compared by, the engine."""
