"""The papers as printed, where the product does something better: runnable, to compare with."""
