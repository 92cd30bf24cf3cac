"""Cascades: one logical model served by several of rising cost. This package makes the offline decisions, from records.

A row runs on the cheapest stage. If its calibrated confidence is high enough, that answer is returned; otherwise the
row escalates, without its unimportant words. `decide` and `prune` are src/flow/cascade on arrays. The package is
pure: it uses NumPy, and SciPy inside the functions that need it.

Papers: Tabi (EuroSys'23) and HybridServe (ICDCS'25). Where they leave a choice open, the docstrings give ours.
"""
