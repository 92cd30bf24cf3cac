"""`arlo cascade`: from repositories and labelled texts to a cascade."""
