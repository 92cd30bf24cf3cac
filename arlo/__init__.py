"""Arlo: length-aware serving of BERT-like encoders in front of NVIDIA Triton."""

__version__ = "0.1.0"
