"""Token adaptation: a body that merges tokens away layer by layer, exported, verified and measured (`arlo adapt`)."""
