"""Signals that cascades read from a stage in addition to its answer: token importance, confidence, word starts."""
