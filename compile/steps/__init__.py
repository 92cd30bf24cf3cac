"""The steps of a build, in order; each has a key, and is not run again while its inputs are the same."""
