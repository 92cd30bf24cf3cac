"""The contents of a catalog: manifests of models and their runtimes."""
