"""Workers that are Triton servers run by someone else."""
