"""The engine back-ends, one module each; see `arlo.compile.engines.interface`."""
