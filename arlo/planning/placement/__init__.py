"""The runtime of each worker, and the steps from one placement to the next."""
