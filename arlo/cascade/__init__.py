"""Cascades: one logical model served by several of rising cost. What is decided offline, from records.

A row runs on the cheapest stage; when its calibrated confidence is high enough the answer goes out, else the row moves
on, without its unimportant words. The decision is that of src/flow/cascade, written again for arrays (`decide`,
`prune`); tests hold the two equal. Pure: NumPy, and SciPy inside the functions that use it.

Papers: Tabi (EuroSys'23) and HybridServe (ICDCS'25); where they leave something open, the docstrings say what was
chosen.
"""
