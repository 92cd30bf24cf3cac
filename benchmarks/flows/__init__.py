"""Flows: planners beside the paper's figures."""
