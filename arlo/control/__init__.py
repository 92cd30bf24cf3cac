"""The control plane: brings the desired placement about and keeps it so.

I/O and time live here; what is desired (placement.py) is pure.
"""
