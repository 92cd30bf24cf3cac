"""The control plane: brings the desired placement about and keeps it so.

I/O and time live here; computing the desired placement (placement.py) is pure.
"""
