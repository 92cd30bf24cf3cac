"""The evaluation of Arlo's paper beside ours: `make figures`."""
