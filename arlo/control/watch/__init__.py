"""Watchers: observations of the cluster and the resulting plans, scaling and recycling."""
