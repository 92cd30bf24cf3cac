"""Workers that are Triton processes on this machine."""
