"""Token adaptation: OTAS's figures beside ours, and a body of text on real engines."""
