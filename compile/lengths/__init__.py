"""The choice of lengths: measured curve, traffic, table and page."""
