"""What a simulation found: result, timeline, plots, page."""
