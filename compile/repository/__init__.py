"""The Triton repository: configuration, model code, manifest."""
