"""Loki (HPDC'24): its planner and its baselines as printed."""
