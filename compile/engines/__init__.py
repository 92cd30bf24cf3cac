"""The engine back-ends, one module each; see `arlo.compile.engine`."""
