"""The HTTP port of the control plane: status and metrics."""
