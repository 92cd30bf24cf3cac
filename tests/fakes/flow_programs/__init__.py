"""The program of flows (U1 to U7) for other solvers, to check the exact one."""
