"""Searches for thresholds, stages, skips and weights on records, never on rows used for fitting or testing."""
