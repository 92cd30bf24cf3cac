"""HybridServe: packing of stages over GPUs (section V), which the product plans otherwise."""
