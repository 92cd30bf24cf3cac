"""The gateway as the control plane sees it: its process and its admin port."""
