"""The Triton server: its command line, administration calls and stub processes."""
