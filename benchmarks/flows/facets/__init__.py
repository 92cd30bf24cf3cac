"""Descriptions of packages: their section, by a second model where the first is unsure, and then facets of programs."""
