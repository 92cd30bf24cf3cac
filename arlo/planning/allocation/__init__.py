"""The number of instances of each runtime: the problem (paper, Eq. 1-7), its objectives and solvers."""
