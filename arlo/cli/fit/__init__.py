"""`arlo fit`: from labelled texts to operating points."""
