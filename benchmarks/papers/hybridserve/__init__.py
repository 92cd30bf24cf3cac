"""HybridServe: its search as printed, and packing of stages over GPUs (section V)."""
