"""The evaluation of Arlo's paper next to ours: `make figures`."""
