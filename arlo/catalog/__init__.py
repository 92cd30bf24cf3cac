"""What can be served: manifests of models and their runtimes."""
