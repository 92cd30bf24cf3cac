"""The one frame of all HTML pages: page, figure, table, and how numbers are written. Every part may use it."""
