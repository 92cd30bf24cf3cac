"""Real data, real models and real engines for cascades; nothing of it is committed, see `make cascade-models`."""
