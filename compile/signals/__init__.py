"""What cascades read from a stage beside its answer: importance of tokens, confidence, where words begin."""
